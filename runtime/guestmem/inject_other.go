//go:build !amd64

package guestmem

import (
	"context"
	"errors"
)

// Having another process make a system call needs its registers, which only
// amd64 code here knows how to handle.
func injectUserfaultfd(context.Context, int) (int, error) {
	return 0, errors.ErrUnsupported
}

func injectDontNeed(context.Context, int, []addressRange, func(addressRange)) error {
	return errors.ErrUnsupported
}
