package branches

import (
	"fmt"
	"sync"
)

// leases keep objects from gc while they are in use and no ref reaches them
// yet: what open writers wrote or found stored, and the maps that are being
// read or built upon. They live in memory only, because a store has one process
// at a time: a crash ends its leases, and gc then takes what it left.
//
// The lock is what makes "it is stored already" and "gc removes it" exclude
// each other. A writer looks up and enters what it found under the read side; gc
// decides and removes under the write side, some objects at a time. Read sides
// are short and never nested.
type leases struct {
	mu sync.RWMutex

	// inner guards the fields below; taken inside mu.
	inner sync.Mutex
	open  map[*lease]struct{}
	// run is the collection under way, nil if none. Leases that end while it
	// runs are kept in it: it may have looked before they became reachable.
	run *gcRun
}

// lease is one writer's or reader's share.
type lease struct {
	mu   sync.Mutex
	seen map[Hash]struct{} // chunks, nodes and blobs
	// bases are nodes that something in seen is stored as a delta of. Their
	// records are kept, not what they name.
	bases   map[Hash]struct{}
	roots   map[Hash]int // maps whose whole trees are kept: root → its level
	commits map[Hash]struct{}
}

func (ls *leases) init() { ls.open = map[*lease]struct{}{} }

func (ls *leases) start() *lease {
	l := &lease{seen: map[Hash]struct{}{}, bases: map[Hash]struct{}{}, roots: map[Hash]int{}, commits: map[Hash]struct{}{}}
	ls.inner.Lock()
	defer ls.inner.Unlock()
	ls.open[l] = struct{}{}
	return l
}

func (ls *leases) end(l *lease) {
	ls.inner.Lock()
	defer ls.inner.Unlock()
	if _, ok := ls.open[l]; !ok {
		return
	}
	delete(ls.open, l)
	if ls.run != nil {
		ls.run.ended = append(ls.run.ended, l)
	}
}

// all returns the leases gc has to respect.
func (ls *leases) all() []*lease {
	ls.inner.Lock()
	defer ls.inner.Unlock()
	var out []*lease
	for l := range ls.open {
		out = append(out, l)
	}
	if ls.run != nil {
		out = append(out, ls.run.ended...)
	}
	return out
}

// doomed reports whether gc is about to remove what hangs under root. The
// caller holds mu.
func (ls *leases) doomed(root Hash) bool {
	ls.inner.Lock()
	run := ls.run
	ls.inner.Unlock()
	if run == nil || run.live == nil || run.live.hasNode(root) {
		return false
	}
	for _, l := range ls.all() {
		if l.has(root) {
			return false
		}
	}
	return true
}

func (l *lease) add(h Hash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[h] = struct{}{}
}

// claim adds h and reports whether it was not there before.
func (l *lease) claim(h Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.seen[h]; ok {
		return false
	}
	l.seen[h] = struct{}{}
	return true
}

func (l *lease) has(h Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.seen[h]
	return ok
}

// pin keeps a whole map for the lease. ErrNotFound when the map is not in the
// store, or is just being collected.
func (s *Store) pin(l *lease, m Map) error {
	if m.Root.IsZero() {
		return nil
	}
	if l.has(m.Root) {
		return nil // written under this lease, or pinned before
	}
	s.leases.mu.RLock()
	defer s.leases.mu.RUnlock()
	v := s.index.view()
	defer v.discard()
	ok, err := v.has(hashKey(tableNode, m.Root))
	if err != nil {
		return err
	}
	if !ok || s.leases.doomed(m.Root) {
		return fmt.Errorf("map %s: %w", m.Root.Short(), ErrNotFound)
	}
	l.mu.Lock()
	l.roots[m.Root] = m.rootLevel()
	l.mu.Unlock()
	return nil
}
