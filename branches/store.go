package branches

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Options for Open. Only Dir is needed.
type Options struct {
	Dir string
	// Wait is how long to wait for another process to release the store.
	Wait   time.Duration
	Logger *slog.Logger     // nil: discard
	Now    func() time.Time // nil: time.Now
}

// Store is an open store. Its methods are safe for concurrent use.
type Store struct{}

// Open opens the store at o.Dir and creates it when the directory is missing or
// empty. One process at a time has a store open: Open waits up to o.Wait, then
// returns a [LockError]. It repairs what a crash left (a pack's unfinished tail).
func Open(ctx context.Context, o Options) (*Store, error) { return nil, errors.ErrUnsupported }

// Close waits for calls under way and releases the store. Idempotent.
func (s *Store) Close() error { return errors.ErrUnsupported }
