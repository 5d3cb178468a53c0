//go:build !amd64

package guestmem

import (
	"context"
	"errors"
)

// Making another process create a userfaultfd needs its registers, which only
// amd64 code here knows how to handle.
func injectUserfaultfd(context.Context, int) (int, error) {
	return 0, errors.ErrUnsupported
}
