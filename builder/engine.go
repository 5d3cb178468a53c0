package builder

import (
	"context"
	"errors"
)

// EngineMain hosts the build engine until it has been idle or ctx ends. args
// are what follows EngineCommand on the command line.
func EngineMain(ctx context.Context, args []string) error {
	return errors.ErrUnsupported
}
