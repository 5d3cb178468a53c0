package branches

import (
	"context"
	"errors"
	"fmt"
)

// pages returns how many pages the space has, the last one perhaps partial.
func (m Map) pages() int64 {
	if m.PageBytes == 0 {
		return 0
	}
	return (m.SizeBytes + int64(m.PageBytes) - 1) / int64(m.PageBytes)
}

// rootLevel is the level of the root: a leaf when the space fits in one.
func (m Map) rootLevel() int { return rootLevel(m.pages()) }

func rootLevel(pages int64) int {
	level := 0
	for span := int64(fanout); span < pages; span *= fanout {
		level++
	}
	return level
}

// validate checks what a caller may get wrong about a map's shape.
func (m Map) validate() error {
	switch {
	case m.PageBytes < minPageBytes || m.PageBytes > maxPageBytes || m.PageBytes&(m.PageBytes-1) != 0:
		return fmt.Errorf("page size %d: want a power of two from %d to %d", m.PageBytes, minPageBytes, maxPageBytes)
	case m.SizeBytes < 0 || m.rootLevel() > maxLevel:
		return fmt.Errorf("size of %d bytes is out of range", m.SizeBytes)
	case m.SizeBytes == 0 && !m.Root.IsZero():
		return errors.New("a space of no bytes has a root")
	}
	return nil
}

// cursor walks down one map's tree, ascending, keeping the path it is on.
type cursor struct {
	src  nodeSource
	m    Map
	root int
	path [maxLevel + 1]*node
	at   [maxLevel + 1]int64 // which node of its level path holds
}

func newCursor(src nodeSource, m Map) *cursor {
	c := &cursor{src: src, m: m, root: m.rootLevel()}
	return c
}

// hashAt returns the hash of the i-th node of a level, level -1 being pages.
func (c *cursor) hashAt(level int, i int64) (Hash, error) {
	if c.m.Root.IsZero() {
		return Hash{}, nil
	}
	if level >= c.root {
		if level > c.root {
			return Hash{}, fmt.Errorf("no level %d in a tree of root level %d", level, c.root)
		}
		if i == 0 {
			return c.m.Root, nil
		}
		return Hash{}, nil
	}
	parent, err := c.nodeAt(level+1, i/fanout)
	if parent == nil || err != nil {
		return Hash{}, err
	}
	return parent.kids[i%fanout], nil
}

// nodeAt returns the i-th node of a level, nil when it is a hole.
func (c *cursor) nodeAt(level int, i int64) (*node, error) {
	if n := c.path[level]; n != nil && c.at[level] == i {
		return n, nil
	}
	h, err := c.hashAt(level, i)
	if err != nil || h.IsZero() {
		return nil, err
	}
	n, err := loadNode(c.src, h, level)
	if err != nil {
		return nil, err
	}
	c.path[level], c.at[level] = n, i
	return n, nil
}

// leafAt returns the at-th leaf, nil when it is a hole or beyond the end.
func (c *cursor) leafAt(at int64) (*node, error) {
	if at*fanout >= c.m.pages() {
		return nil, nil
	}
	return c.nodeAt(0, at)
}

// adopt gives the cursor a leaf somebody else has loaded already.
func (c *cursor) adopt(l leafAt) {
	if l.leaf != nil {
		c.path[0], c.at[0] = l.leaf, l.at
	}
}

// walkLeaves calls fn for every leaf that is not a hole, ascending, with the
// number of its first page. fn owns the leaf.
func walkLeaves(ctx context.Context, src nodeSource, m Map, fn func(first int64, leaf *node) error) error {
	if m.Root.IsZero() {
		return nil
	}
	var down func(h Hash, level int, first int64) error
	down = func(h Hash, level int, first int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := loadNode(src, h, level)
		if err != nil {
			return err
		}
		if level == 0 {
			return fn(first, n)
		}
		for i, kid := range n.kids {
			if kid.IsZero() {
				continue
			}
			if err := down(kid, level-1, first+int64(i)<<(fanoutBits*level)); err != nil {
				return err
			}
		}
		return nil
	}
	return down(m.Root, m.rootLevel(), 0)
}

// diffNodes yields the pages in which two subtrees of the same level differ.
func diffNodes(ctx context.Context, src nodeSource, a, b Hash, level int, first int64, yield func(int64) bool) (more bool, err error) {
	if a == b {
		return true, nil
	}
	if level < 0 {
		return yield(first), nil
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	var ka, kb children
	for _, side := range []struct {
		h    Hash
		kids *children
	}{{a, &ka}, {b, &kb}} {
		if side.h.IsZero() {
			continue
		}
		n, err := loadNode(src, side.h, level)
		if err != nil {
			return false, err
		}
		*side.kids = n.kids
	}
	for i := range ka {
		if more, err := diffNodes(ctx, src, ka[i], kb[i], level-1, first+int64(i)<<(fanoutBits*level), yield); !more || err != nil {
			return false, err
		}
	}
	return true, nil
}

// diffMaps yields the pages in which two maps differ. The taller tree's first
// subtrees are set against the whole of the other; what lies beyond has no
// counterpart.
func diffMaps(ctx context.Context, src nodeSource, a, b Map, yield func(int64) bool) error {
	la, lb := a.rootLevel(), b.rootLevel()
	if la < lb {
		a, b, la, lb = b, a, lb, la
	}
	var down func(h Hash, level int, first int64) (bool, error)
	down = func(h Hash, level int, first int64) (bool, error) {
		if level == lb {
			other := Hash{}
			if first == 0 {
				other = b.Root
			}
			return diffNodes(ctx, src, h, other, level, first, yield)
		}
		var kids children
		if !h.IsZero() {
			n, err := loadNode(src, h, level)
			if err != nil {
				return false, err
			}
			kids = n.kids
		} else if first != 0 {
			return true, nil
		}
		for i := range kids {
			if kids[i].IsZero() && (first != 0 || i != 0) {
				continue
			}
			if more, err := down(kids[i], level-1, first+int64(i)<<(fanoutBits*level)); !more || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	_, err := down(a.Root, la, 0)
	return err
}

// treeBuilder makes the tree of a new map out of an ascending series of changes
// to its parent's. Only nodes on the way from a change to the root are touched.
type treeBuilder struct {
	old  *cursor
	m    Map // the new map; Root is set by finish
	top  int
	emit func(n *node, record []byte) error

	level [maxLevel + 1]levelBuilder
	root  Hash
}

// levelBuilder is the node of one level that is being changed.
type levelBuilder struct {
	open bool
	at   int64
	kids children
	prev *node // what it was; nil for a hole
}

func newTreeBuilder(src nodeSource, parent, m Map, emit func(*node, []byte) error) (*treeBuilder, error) {
	b := &treeBuilder{old: newCursor(src, parent), m: m, top: m.rootLevel(), emit: emit}
	if b.old.root > b.top {
		// The new space is smaller: the part of the old tree that is left is
		// what hangs at its height under the first child.
		h, err := b.old.hashAt(b.top, 0)
		if err != nil {
			return nil, err
		}
		b.root = h
		return b, nil
	}
	b.root = parent.Root
	if b.old.root < b.top {
		b.root = Hash{}
		if !parent.Root.IsZero() {
			// A taller tree: the old root becomes the first child of new nodes.
			if err := b.put(b.old.root+1, 0, parent.Root); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// put sets child i of a level's nodes (numbered across the level) to h.
func (b *treeBuilder) put(level int, i int64, h Hash) error {
	lb, err := b.openNode(level, i/fanout)
	if err != nil {
		return err
	}
	lb.kids[i%fanout] = h
	return nil
}

// openNode makes the at-th node of a level the one being changed and finishes
// the one before it.
func (b *treeBuilder) openNode(level int, at int64) (*levelBuilder, error) {
	lb := &b.level[level]
	if lb.open && lb.at == at {
		return lb, nil
	}
	if err := b.closeNode(level); err != nil {
		return nil, err
	}
	lb.open, lb.at, lb.prev, lb.kids = true, at, nil, children{}
	switch {
	case level <= b.old.root:
		n, err := b.old.nodeAt(level, at)
		if err != nil {
			return nil, err
		}
		if n != nil {
			lb.prev, lb.kids = n, n.kids
		}
	case at == 0 && level == b.old.root+1:
		lb.kids[0] = b.old.m.Root
	}
	return lb, nil
}

// closeNode finishes the open node of a level, writes it when it is new, and
// hands its hash up.
func (b *treeBuilder) closeNode(level int) error {
	lb := &b.level[level]
	if !lb.open {
		return nil
	}
	lb.open = false
	n := &node{hash: hashNode(level, &lb.kids), level: level, kids: lb.kids}
	if lb.prev != nil && lb.prev.hash == n.hash {
		return nil
	}
	if !n.hash.IsZero() {
		if err := b.emit(n, encodeNode(n, lb.prev)); err != nil {
			return err
		}
	}
	if level == b.top {
		b.root = n.hash
		return nil
	}
	return b.put(level+1, lb.at, n.hash)
}

// finish clears what lies behind the end of a space that became smaller and
// returns the new map.
func (b *treeBuilder) finish() (Map, error) {
	pages := b.m.pages()
	shrunk := b.old.m.pages() > pages
	for level, last := 0, pages-1; level <= b.top; level, last = level+1, last/fanout {
		if shrunk && pages > 0 && !b.root.IsZero() {
			lb, err := b.openNode(level, last/fanout)
			if err != nil {
				return Map{}, err
			}
			clear(lb.kids[last%fanout+1:])
		}
		if err := b.closeNode(level); err != nil {
			return Map{}, err
		}
	}
	m := b.m
	if m.Root = b.root; pages == 0 {
		m.Root = Hash{}
	}
	return m, nil
}
