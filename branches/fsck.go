package branches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// maxProblems bounds a report; a store that bad needs no longer list.
const maxProblems = 1000

// Fsck verifies every stored object against its hash, and that everything an
// object, ref, HEAD or reflog names is there. The error is about the check
// itself; what is wrong with the store is in the report. Writers may work
// beside it; gc may not.
func (s *Store) Fsck(ctx context.Context, o FsckOptions) (FsckReport, error) {
	end, err := s.beginRead()
	if err != nil {
		return FsckReport{}, err
	}
	defer end()
	s.collecting.Lock()
	defer s.collecting.Unlock()
	v := s.index.view()
	defer v.discard()
	c := &checker{s: s, v: v, bad: map[Hash]int{}}
	for _, step := range []func(context.Context) error{c.refs, c.commits, c.nodes, func(ctx context.Context) error { return c.bodies(ctx, o.SkipBodies) }, c.blame} {
		if err := step(ctx); err != nil {
			return c.report, fmt.Errorf("check store: %w", err)
		}
	}
	return c.report, nil
}

// checker is one run of Fsck.
type checker struct {
	s *Store
	v *view

	mu     sync.Mutex // of what follows; bodies are checked in parallel
	report FsckReport
	bad    map[Hash]int // objects with a problem → its place in the report
}

func (c *checker) problem(kind, object, format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(Problem{Kind: kind, Object: object, Detail: fmt.Sprintf(format, a...)})
}

// problemAt is problem for an object that commits may depend on.
func (c *checker) problemAt(kind string, h Hash, format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.bad[h]; ok {
		return
	}
	c.bad[h] = len(c.report.Problems)
	c.add(Problem{Kind: kind, Object: h.String(), Detail: fmt.Sprintf(format, a...)})
}

func (c *checker) add(p Problem) {
	if len(c.report.Problems) < maxProblems {
		c.report.Problems = append(c.report.Problems, p)
	}
}

// fault is a problem an error describes. Errors that are no corruption end the
// check.
func (c *checker) fault(err error, kind string, h Hash) error {
	var ce *CorruptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ce):
		c.problemAt(kind, h, "%s %s: %s", ce.Kind, ce.Object, ce.Reason)
		return nil
	case errors.Is(err, ErrNotFound):
		c.problemAt(kind, h, "missing")
		return nil
	case errors.Is(err, ErrFormat):
		c.problemAt(kind, h, "%v", err)
		return nil
	}
	return err
}

func (c *checker) exists(table byte, h Hash) (bool, error) { return c.v.has(hashKey(table, h)) }

// refs checks that refs, HEADs and reflogs can be read and name commits.
func (c *checker) refs(ctx context.Context) error {
	names := func(kind, object string, h Hash) error {
		if h.IsZero() {
			return nil
		}
		ok, err := c.exists(tableCommit, h)
		if err == nil && !ok {
			c.problem(kind, object, "names commit %s, which is missing", h)
		}
		return err
	}
	err := c.v.scan([]byte{tableRef}, func(key, val []byte) error {
		name := RefName(key[1:])
		h, err := decodeRef(val)
		if err != nil {
			c.problem("ref", string(name), "%v", err)
			return nil
		}
		if err := name.validate(); err != nil {
			c.problem("ref", string(name), "%v", err)
		}
		return names("ref", string(name), h)
	})
	if err != nil {
		return err
	}
	holder := map[string]string{}
	err = c.v.scan([]byte{tableHead}, func(key, val []byte) error {
		id := string(key[1:])
		h, err := decodeHead(val)
		if err != nil {
			c.problem("head", id, "%v", err)
			return nil
		}
		if b := h.Head.Branch; b != "" {
			if other, ok := holder[b]; ok {
				c.problem("head", id, "branch %s is checked out in sandbox %s too", b, other)
			}
			holder[b] = id
		}
		return errors.Join(names("head", id, h.Head.Commit), names("head", id, h.Commit))
	})
	if err != nil {
		return err
	}
	return c.v.scan([]byte{tableReflog}, func(key, val []byte) error {
		object := fmt.Sprintf("%q", key[1:])
		e, err := decodeReflog(val)
		if err != nil {
			c.problem("reflog", object, "%v", err)
			return nil
		}
		return names("reflog", object, e.Commit)
	})
}

func (c *checker) commits(ctx context.Context) error {
	return c.v.scan([]byte{tableCommit}, func(key, val []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := keyHash(key)
		if err != nil {
			c.problem("commit", fmt.Sprintf("%x", key), "%v", err)
			return nil
		}
		c.report.Commits++
		r, err := decodeCommitRecord(h, val)
		if err != nil {
			return c.fault(err, "commit", h)
		}
		m, err := decodeCommit(r.encoded)
		if err != nil {
			c.problemAt("commit", h, "%v", err)
			return nil
		}
		if r.sortDate < m.Created.UnixNano() {
			c.problemAt("commit", h, "sort date %d is before its creation", r.sortDate)
		}
		for _, p := range m.Parents {
			if _, date, err := c.v.commit(p); err != nil {
				c.problemAt("commit", h, "parent: %v", err)
			} else if date >= r.sortDate {
				c.problemAt("commit", h, "sort date %d is not after its parent's", r.sortDate)
			}
		}
		for _, need := range []struct {
			table byte
			kind  string
			hash  Hash
		}{{tableBlob, "blob", m.Devices}, {tableNode, "node", m.Disk.Root}, {tableNode, "node", memoryRoot(m)}} {
			if need.hash.IsZero() {
				continue
			}
			ok, err := c.exists(need.table, need.hash)
			if err != nil {
				return err
			}
			if !ok {
				c.problemAt(need.kind, need.hash, "missing")
			}
		}
		return nil
	})
}

func memoryRoot(c *Commit) Hash {
	if c.Memory == nil {
		return Hash{}
	}
	return c.Memory.Root
}

// nodes checks every node against its hash, and that its children are there.
// For a node stored as a delta of another that is checked as well, the children
// that differ are enough.
func (c *checker) nodes(ctx context.Context) error {
	err := c.v.scan([]byte{tableNode}, func(key, val []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := keyHash(key)
		if err != nil {
			c.problem("node", fmt.Sprintf("%x", key), "%v", err)
			return nil
		}
		c.report.Nodes++
		rec, err := decodeNode(val)
		if err != nil {
			c.problemAt("node", h, "%v", err)
			return nil
		}
		n, err := loadNode(c.v, h, rec.level)
		if err != nil {
			return c.fault(err, "node", h)
		}
		if got := hashNode(n.level, &n.kids); got != h {
			c.problemAt("node", h, "its children hash to %s", got)
			return nil
		}
		look := rec.set
		if rec.depth > 0 {
			whole, err := c.exists(tableNode, rec.base)
			if err != nil {
				return err
			}
			if !whole {
				look = look[:0:0]
				for i := range n.kids {
					if !n.kids[i].IsZero() {
						look = append(look, slot{i, n.kids[i]})
					}
				}
			}
		}
		table, kind := byte(tableNode), "node"
		if n.level == 0 {
			table, kind = tableChunk, "chunk"
		}
		for _, s := range look {
			ok, err := c.exists(table, s.hash)
			if err != nil {
				return err
			}
			if !ok {
				c.problemAt(kind, s.hash, "missing")
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.v.scan([]byte{tableBase}, func(key, val []byte) error {
		h, err := keyHash(key)
		if err == nil {
			_, err = decodeNode(val)
		}
		if err != nil {
			c.problem("node", fmt.Sprintf("%x", key), "base: %v", err)
			return nil
		}
		rec, _ := decodeNode(val)
		n, err := loadNode(c.v, h, rec.level)
		if err != nil {
			return c.fault(err, "node", h)
		}
		if got := hashNode(n.level, &n.kids); got != h {
			c.problemAt("node", h, "its children hash to %s", got)
		}
		return nil
	})
}

// blame finds the commits that suffer from what was found.
func (c *checker) blame(ctx context.Context) error {
	if len(c.bad) == 0 {
		return nil
	}
	// What is wrong under a node, by place in the report, is worked out once.
	under := map[Hash][]int{}
	var look func(h Hash, level int) []int
	look = func(h Hash, level int) []int {
		if h.IsZero() {
			return nil
		}
		if i, ok := c.bad[h]; ok {
			return []int{i}
		}
		if level < 0 {
			return nil
		}
		if found, ok := under[h]; ok {
			return found
		}
		var found []int
		if n, err := loadNode(c.v, h, level); err == nil {
			for i := range n.kids {
				found = append(found, look(n.kids[i], level-1)...)
			}
		}
		slices.Sort(found)
		found = slices.Compact(found)
		under[h] = found
		return found
	}
	return c.v.scan([]byte{tableCommit}, func(key, val []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := keyHash(key)
		if err != nil {
			return nil
		}
		var found []int
		if i, ok := c.bad[h]; ok {
			found = append(found, i)
		}
		if r, err := decodeCommitRecord(h, val); err == nil {
			if m, err := decodeCommit(r.encoded); err == nil {
				found = append(found, look(m.Disk.Root, m.Disk.rootLevel())...)
				found = append(found, look(m.Devices, -1)...)
				if m.Memory != nil {
					found = append(found, look(m.Memory.Root, m.Memory.rootLevel())...)
				}
			}
		}
		for _, i := range found {
			if i < len(c.report.Problems) && len(c.report.Problems[i].Commits) < 8 && !slices.Contains(c.report.Problems[i].Commits, h) {
				c.report.Problems[i].Commits = append(c.report.Problems[i].Commits, h)
			}
		}
		return nil
	})
}
