package branches

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
)

// dated is a commit waiting to be visited.
type dated struct {
	c    *Commit
	date int64 // greater than any ancestor's
}

// byDate visits commits newest first. Sort dates grow from parent to child, so
// no commit comes up before all of its descendants have.
type byDate []dated

func (q byDate) Len() int      { return len(q) }
func (q byDate) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q byDate) Less(i, j int) bool {
	if q[i].date != q[j].date {
		return q[i].date > q[j].date
	}
	return bytes.Compare(q[i].c.ID[:], q[j].c.ID[:]) < 0
}
func (q *byDate) Push(x any) { *q = append(*q, x.(dated)) }
func (q *byDate) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func (q *byDate) load(v *view, h Hash) error {
	c, date, err := v.commit(h)
	if err != nil {
		return err
	}
	heap.Push(q, dated{c, date})
	return nil
}

// Log returns up to n commits reachable from from, newest first and never a
// parent before its child. n ≤ 0 is all.
func (s *Store) Log(ctx context.Context, from []Hash, n int) ([]*Commit, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	var q byDate
	seen := map[Hash]bool{}
	visit := func(hs []Hash) error {
		for _, h := range hs {
			if seen[h] {
				continue
			}
			seen[h] = true
			if err := q.load(v, h); err != nil {
				return fmt.Errorf("read history: %w", err)
			}
		}
		return nil
	}
	if err := visit(from); err != nil {
		return nil, err
	}
	var out []*Commit
	for len(q) > 0 && (n <= 0 || len(out) < n) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read history: %w", err)
		}
		c := heap.Pop(&q).(dated).c
		out = append(out, c)
		if err := visit(c.Parents); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// IsAncestor reports whether ancestor is descendant or reachable from it.
func (s *Store) IsAncestor(ctx context.Context, ancestor, descendant Hash) (bool, error) {
	end, err := s.begin()
	if err != nil {
		return false, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	_, limit, err := v.commit(ancestor)
	if err != nil {
		return false, err
	}
	var q byDate
	if err := q.load(v, descendant); err != nil {
		return false, err
	}
	seen := map[Hash]bool{descendant: true}
	for len(q) > 0 {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("read history: %w", err)
		}
		d := heap.Pop(&q).(dated)
		if d.c.ID == ancestor {
			return true, nil
		}
		if d.date < limit {
			return false, nil // everything left is older still
		}
		for _, p := range d.c.Parents {
			if seen[p] {
				continue
			}
			seen[p] = true
			if err := q.load(v, p); err != nil {
				return false, fmt.Errorf("read history: %w", err)
			}
		}
	}
	return false, nil
}

// MergeBase returns a best common ancestor of a and b: one that is no ancestor
// of another common one, the newest of several. ErrNotFound when the histories
// are unrelated.
func (s *Store) MergeBase(ctx context.Context, a, b Hash) (Hash, error) {
	end, err := s.begin()
	if err != nil {
		return Hash{}, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	const fromA, fromB = 1, 2
	// Both histories are walked at once, newest first. A commit comes up only
	// after all its descendants, so the first one that both sides lead to is
	// no ancestor of another such.
	marks := map[Hash]int{a: fromA}
	marks[b] |= fromB
	var q byDate
	for h := range marks {
		if err := q.load(v, h); err != nil {
			return Hash{}, err
		}
	}
	for len(q) > 0 {
		if err := ctx.Err(); err != nil {
			return Hash{}, fmt.Errorf("read history: %w", err)
		}
		c := heap.Pop(&q).(dated).c
		mark := marks[c.ID]
		if mark == fromA|fromB {
			return c.ID, nil
		}
		for _, p := range c.Parents {
			have, queued := marks[p]
			marks[p] = have | mark
			if queued {
				continue
			}
			if err := q.load(v, p); err != nil {
				return Hash{}, fmt.Errorf("read history: %w", err)
			}
		}
	}
	return Hash{}, fmt.Errorf("common ancestor of %s and %s: %w", a.Short(), b.Short(), ErrNotFound)
}
