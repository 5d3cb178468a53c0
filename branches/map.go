package branches

import (
	"context"
	"fmt"
	"iter"
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
	PageBytes int // a power of two
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

// DiffMaps yields the indexes of pages that differ, ascending. Shared subtrees
// are not read. The maps must have the same PageBytes; a page beyond the end
// of the shorter one counts as zero.
func (s *Store) DiffMaps(ctx context.Context, a, b Map) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		if a.PageBytes != b.PageBytes {
			yield(0, fmt.Errorf("compare maps: pages of %d and of %d bytes", a.PageBytes, b.PageBytes))
			return
		}
		end, err := s.beginRead(a, b)
		if err != nil {
			yield(0, fmt.Errorf("compare maps: %w", err))
			return
		}
		defer end()
		if err := diffMaps(ctx, s, a, b, func(i int64) bool { return yield(i, nil) }); err != nil {
			yield(0, fmt.Errorf("compare maps: %w", err))
		}
	}
}
