package branches

import (
	"context"
	"errors"
)

// FsckOptions for Fsck.
type FsckOptions struct {
	// SkipBodies leaves out reading the packs: structure only.
	SkipBodies bool
}

// Problem is one thing Fsck found.
type Problem struct {
	Kind    string // as CorruptError.Kind
	Object  string
	Detail  string
	Commits []Hash // commits that cannot be restored because of it, at most eight
}

// FsckReport is what Fsck looked at and found.
type FsckReport struct {
	Commits, Nodes, Chunks, Blobs int64
	Packs                         int
	Bytes                         int64 // compressed bytes read
	Problems                      []Problem
}

// OK reports whether nothing was found.
func (r *FsckReport) OK() bool { return len(r.Problems) == 0 }

// Fsck verifies every stored object against its hash, and that everything
// reachable is there. The error is about the check itself; what is wrong with
// the store is in the report.
func (s *Store) Fsck(ctx context.Context, o FsckOptions) (FsckReport, error) {
	return FsckReport{}, errors.ErrUnsupported
}

// Usage is the space a store takes.
type Usage struct {
	Commits, Branches, Tags int64
	Nodes, Chunks, Blobs    int64
	Packs                   int
	PackBytes               int64 // compressed bodies
	IndexBytes              int64 // Badger
	ChunkBytes              int64 // stored chunks, uncompressed
}

// Usage counts what is stored.
func (s *Store) Usage(ctx context.Context) (Usage, error) { return Usage{}, errors.ErrUnsupported }
