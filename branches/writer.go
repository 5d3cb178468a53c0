package branches

import (
	"context"
	"errors"
	"iter"
)

// Writer adds objects. It is a lease as well: nothing it wrote or found stored
// already is collected before Close. Methods are not safe for concurrent use;
// several writers may work side by side.
type Writer struct{}

// NewWriter starts a lease.
func (s *Store) NewWriter(ctx context.Context) (*Writer, error) { return nil, errors.ErrUnsupported }

// WriteMap stores the space parent becomes when the changed pages are laid over
// it, in O(changed). The zero parent is an empty space. Indexes ascend
// strictly; Data is read before the next step; an all-zero page is a hole.
// sizeBytes may be larger than the parent's, or smaller by whole pages.
//
// Nothing is durable, and nothing can be read through the store, before Commit
// or Flush returns; the same writer may use the new map as a parent at once.
func (w *Writer) WriteMap(ctx context.Context, parent Map, sizeBytes int64, pageBytes int, changed iter.Seq2[Page, error]) (Map, MapStats, error) {
	return Map{}, MapStats{}, errors.ErrUnsupported
}

// WriteBlob stores a small object (at most MaxBlobBytes), such as device state.
// stored is the number of bytes added, 0 when it was there.
func (w *Writer) WriteBlob(ctx context.Context, data []byte) (id Hash, stored int64, err error) {
	return Hash{}, 0, errors.ErrUnsupported
}

// Flush makes everything written so far durable and readable, though reachable
// from nothing. Commit does it too.
func (w *Writer) Flush(ctx context.Context) error { return errors.ErrUnsupported }

// Commit stores c and applies tx in one transaction, after everything written
// before is durable: body, index, node, ref. [Self] in tx is the new id. It
// sets c.ID, and c.Created when that is zero. Storing a commit that exists
// already is no error.
func (w *Writer) Commit(ctx context.Context, c *Commit, tx Update) (Hash, error) {
	return Hash{}, errors.ErrUnsupported
}

// Close ends the lease. What was written and not committed is left to gc.
// Idempotent.
func (w *Writer) Close() error { return errors.ErrUnsupported }
