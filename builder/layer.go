package builder

import (
	"context"
	"errors"
)

// MakeLayer makes a new sparse file at path with an empty ext4 of sizeBytes:
// the writable disk of a sandbox. path must not exist. It does not need root.
func MakeLayer(ctx context.Context, path string, sizeBytes int64) error {
	return errors.ErrUnsupported
}
