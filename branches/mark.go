package branches

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// liveSet is everything reachable.
type liveSet struct {
	commits map[Hash]struct{}
	blobs   map[Hash]struct{}
	nodes   map[Hash]struct{}
	// bases are nodes that are no longer part of any map, but that live ones
	// are stored as deltas of. Their records live on, their pages need not.
	bases map[Hash]struct{}
	// chunks are known by their first eight bytes, for there are many of them.
	// Two that agree in these keep each other alive, which does no harm.
	chunks map[uint64]struct{}
}

func (l *liveSet) hasCommit(h Hash) bool { _, ok := l.commits[h]; return ok }
func (l *liveSet) hasBlob(h Hash) bool   { _, ok := l.blobs[h]; return ok }
func (l *liveSet) hasNode(h Hash) bool   { _, ok := l.nodes[h]; return ok }
func (l *liveSet) hasBase(h Hash) bool   { _, ok := l.bases[h]; return ok }
func (l *liveSet) hasChunk(h Hash) bool  { _, ok := l.chunks[chunkMark(h)]; return ok }

func chunkMark(h Hash) uint64 { return binary.LittleEndian.Uint64(h[:]) }

func newLiveSet() *liveSet {
	return &liveSet{commits: map[Hash]struct{}{}, blobs: map[Hash]struct{}{}, nodes: map[Hash]struct{}{},
		bases: map[Hash]struct{}{}, chunks: map[uint64]struct{}{}}
}

// mark adds everything the roots reach. It is a function of the roots and of
// one picture of the index alone, and visits only what is not marked yet. A
// missing object is ErrCorrupt: collecting around a hole could remove what a
// repair needs. After an error the set is of no use.
func (l *liveSet) mark(ctx context.Context, v *view, roots gcRoots) error {
	m := &marker{v: v, live: l}
	for h, level := range roots.maps {
		m.addNode(h, level)
	}
	if err := m.commits(ctx, roots.commits); err != nil {
		return err
	}
	if err := m.inner(ctx); err != nil {
		return err
	}
	return m.leafPages(ctx)
}

type marker struct {
	v      *view
	live   *liveSet
	queue  []markNode // inner nodes to visit
	leaves []Hash
}

type markNode struct {
	hash  Hash
	level int
}

func (m *marker) addNode(h Hash, level int) {
	if h.IsZero() || m.live.hasNode(h) {
		return
	}
	m.live.nodes[h] = struct{}{}
	if level == 0 {
		m.leaves = append(m.leaves, h)
	} else {
		m.queue = append(m.queue, markNode{h, level})
	}
}

func (m *marker) commits(ctx context.Context, queue []Hash) error {
	for len(queue) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		h := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if m.live.hasCommit(h) {
			continue
		}
		c, _, err := m.v.commit(h)
		if errors.Is(err, ErrNotFound) {
			return &CorruptError{Kind: "commit", Object: h.String(), Reason: "missing, but something refers to it"}
		}
		if err != nil {
			return err
		}
		m.live.commits[h] = struct{}{}
		if !c.Devices.IsZero() {
			m.live.blobs[c.Devices] = struct{}{}
		}
		m.addNode(c.Disk.Root, c.Disk.rootLevel())
		if c.Memory != nil {
			m.addNode(c.Memory.Root, c.Memory.rootLevel())
		}
		queue = append(queue, c.Parents...)
	}
	return nil
}

func (m *marker) inner(ctx context.Context) error {
	for len(m.queue) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := m.queue[len(m.queue)-1]
		m.queue = m.queue[:len(m.queue)-1]
		n, err := loadNode(m.v, at.hash, at.level)
		if err != nil {
			return err
		}
		for i := range n.kids {
			m.addNode(n.kids[i], at.level-1)
		}
		// Inner nodes are few: their chains are looked at one by one.
		if err := m.keepChain(at.hash); err != nil {
			return err
		}
	}
	return nil
}

// leafPages marks pages. A leaf stored as a delta of another live one adds only
// what the delta says; the rest is the other's.
func (m *marker) leafPages(ctx context.Context) error {
	for i, h := range m.leaves {
		if i%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rec, ok, err := m.v.nodeRecord(h)
		if err != nil {
			return err
		}
		if !ok || rec.level != 0 {
			return &CorruptError{Kind: "node", Object: h.String(), Reason: "missing, or not the leaf it should be"}
		}
		if rec.depth > 0 && !m.live.hasNode(rec.base) {
			n, err := loadNode(m.v, h, 0)
			if err != nil {
				return err
			}
			for i := range n.kids {
				m.addChunk(n.kids[i])
			}
			if err := m.keepChain(h); err != nil {
				return err
			}
			continue
		}
		for _, s := range rec.set {
			m.addChunk(s.hash)
		}
	}
	return nil
}

func (m *marker) addChunk(h Hash) {
	if !h.IsZero() {
		m.live.chunks[chunkMark(h)] = struct{}{}
	}
}

// keepChain keeps the records a node rests on, down to one that is live itself
// (which keeps its own) or known.
func (m *marker) keepChain(h Hash) error {
	for range maxDeltaHops {
		rec, ok, err := m.v.nodeRecord(h)
		if err != nil {
			return err
		}
		if !ok {
			return &CorruptError{Kind: "node", Object: h.String(), Reason: "missing, though others are stored as deltas of it"}
		}
		if rec.depth == 0 || m.live.hasNode(rec.base) || m.live.hasBase(rec.base) {
			return nil
		}
		m.live.bases[rec.base] = struct{}{}
		h = rec.base
	}
	return fmt.Errorf("node %s: its chain of bases does not end: %w", h.Short(), ErrCorrupt)
}
