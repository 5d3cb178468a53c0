package branches

import (
	"context"
	"errors"
)

// Log returns up to n commits reachable from from, newest first and never a
// parent before its child. n ≤ 0 is all.
func (s *Store) Log(ctx context.Context, from []Hash, n int) ([]*Commit, error) {
	return nil, errors.ErrUnsupported
}

// MergeBase returns a best common ancestor of a and b: one that is no ancestor
// of another common one. ErrNotFound when the histories are unrelated.
func (s *Store) MergeBase(ctx context.Context, a, b Hash) (Hash, error) {
	return Hash{}, errors.ErrUnsupported
}

// IsAncestor reports whether ancestor is descendant or reachable from it.
func (s *Store) IsAncestor(ctx context.Context, ancestor, descendant Hash) (bool, error) {
	return false, errors.ErrUnsupported
}
