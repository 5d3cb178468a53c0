package branches

import (
	"context"
	"errors"
	"iter"
	"os"
)

// Page sizes for the two spaces a machine has.
const (
	MemoryPageBytes = 4 << 10
	DiskPageBytes   = 16 << 10
)

// Map is a complete picture of a flat space of pages (guest RAM or a disk): a
// Merkle tree whose unchanged subtrees are shared between commits. The zero
// Root is a space of zeroes.
type Map struct {
	Root      Hash
	SizeBytes int64
	PageBytes int
}

// Page is one page of a space. Data is PageBytes long, also for a last page
// that reaches beyond SizeBytes (the rest is zero).
type Page struct {
	Index int64
	Data  []byte
}

// MapStats says what a WriteMap came to.
type MapStats struct {
	PagesChanged int64 // pages that differ from the parent's
	PagesNew     int64 // of these, pages the store did not have
	BytesNew     int64 // PagesNew, uncompressed
	BytesStored  int64 // bytes added to disk: compressed pages, their index and tree nodes
}

// MaterializeOptions tunes [Store.Materialize].
type MaterializeOptions struct {
	// Verify checks the hash of every page. Off on the way of a fork.
	Verify bool
	// Workers bounds parallel decompression; 0 is one per CPU.
	Workers int
}

// Materialize writes the space into dst as a sparse file: dst is truncated, set
// to SizeBytes, and only non-zero pages are written. It does not sync. A
// missing or unreadable chunk is ErrCorrupt and named; dst is then incomplete.
func (s *Store) Materialize(ctx context.Context, m Map, dst *os.File, o MaterializeOptions) error {
	return errors.ErrUnsupported
}

// DiffMaps yields the indexes of pages that differ, ascending. Shared subtrees
// are not read. The maps must have the same PageBytes; a page beyond the end
// of the shorter one counts as zero.
func (s *Store) DiffMaps(ctx context.Context, a, b Map) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) { yield(0, errors.ErrUnsupported) }
}

// Pages yields the non-zero pages, ascending. Data is valid until the next step.
func (s *Store) Pages(ctx context.Context, m Map) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) { yield(Page{}, errors.ErrUnsupported) }
}
