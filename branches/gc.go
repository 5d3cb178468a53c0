package branches

import (
	"context"
	"errors"
	"time"
)

// GCOptions for PlanGC.
type GCOptions struct {
	// ExtraRoots are commits kept beside those refs, HEADs and reflogs reach.
	ExtraRoots []Hash
	// Grace keeps unreachable commits created less than that ago.
	Grace time.Duration
}

// GCPlan says what a collection would do. It holds no lock and no lease.
type GCPlan struct {
	Commits        []Hash // unreachable commits
	Nodes, Blobs   int64  // unreachable tree nodes and blobs
	Chunks         int64  // unreachable chunks
	LiveChunks     int64
	PacksRemoved   int   // packs with nothing alive in them
	PacksRewritten int   // packs with much dead in them
	FreedBytes     int64 // estimate of what the disk gets back
}

// GCResult says what Execute did.
type GCResult struct {
	Commits, Nodes, Blobs, Chunks int64
	PacksRemoved, PacksRewritten  int
	FreedBytes                    int64 // by how much the store's files shrank
}

// PlanGC finds what no root reaches. Roots: refs, HEADs, reflogs, live writers
// and readers, extra roots, commits within grace.
func (s *Store) PlanGC(ctx context.Context, o GCOptions) (*GCPlan, error) {
	return nil, errors.ErrUnsupported
}

// Execute removes what the plan names and what is still unreachable; commits
// made since the plan lose nothing. Writers and readers may work beside it.
func (p *GCPlan) Execute(ctx context.Context) (GCResult, error) {
	return GCResult{}, errors.ErrUnsupported
}
