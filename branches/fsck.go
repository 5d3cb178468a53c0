package branches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
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

// stored is an index entry to be held against what is in its pack.
type stored struct {
	hash Hash
	loc  location
	blob bool
}

// bodies checks packs against their records and every indexed body against its
// hash.
func (c *checker) bodies(ctx context.Context, skip bool) error {
	records, err := c.s.packRecords()
	if err != nil {
		return err
	}
	byPack := map[uint64][]stored{}
	for _, table := range []byte{tableChunk, tableBlob} {
		err := c.v.scan([]byte{table}, func(key, val []byte) error {
			h, err := keyHash(key)
			if err != nil {
				c.problem("chunk", fmt.Sprintf("%x", key), "%v", err)
				return nil
			}
			kind := "chunk"
			if table == tableBlob {
				kind = "blob"
				c.report.Blobs++
			} else {
				c.report.Chunks++
			}
			loc, err := decodeLocation(val)
			if err != nil {
				c.problemAt(kind, h, "%v", err)
				return nil
			}
			if size, ok := records[loc.pack]; !ok || loc.offset+int64(loc.length) > size {
				c.problemAt(kind, h, "in pack %d at %d: beyond what is recorded of it (%d bytes)", loc.pack, loc.offset, size)
				return nil
			}
			byPack[loc.pack] = append(byPack[loc.pack], stored{h, loc, table == tableBlob})
			return nil
		})
		if err != nil {
			return err
		}
	}
	_, sizes, err := c.s.packs.list()
	if err != nil {
		return err
	}
	c.report.Packs = len(records)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(defaultWorkers())
	for id, size := range records {
		have, ok := sizes[id]
		switch {
		case !ok:
			c.problem("pack", packName(id), "missing")
		case have < size:
			c.problem("pack", packName(id), "%d bytes, %d were written", have, size)
		}
		entries := byPack[id]
		if !ok {
			for _, e := range entries {
				c.problemAt(kindOf(e), e.hash, "its pack is missing")
			}
			continue
		}
		if skip {
			continue
		}
		slices.SortFunc(entries, func(a, b stored) int { return compareLocations(a.loc, b.loc) })
		g.Go(func() error { return c.pack(ctx, id, min(size, have), entries) })
	}
	return g.Wait()
}

func kindOf(e stored) string {
	if e.blob {
		return "blob"
	}
	return "chunk"
}

// pack reads a whole pack, block by block, and checks what the index says is in
// each of them.
func (c *checker) pack(ctx context.Context, id uint64, size int64, entries []stored) error {
	f := newFetcher(c.s, 0)
	defer f.close()
	var head [packHeaderBytes]byte
	if err := c.s.packs.readAt(id, head[:], 0); err != nil {
		c.problem("pack", packName(id), "%v", err)
	} else if err := checkPackHeader(head[:], id); err != nil {
		c.problem("pack", packName(id), "%v", err)
	}
	off := int64(packHeaderBytes)
	for off < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, raw, err := f.whole(id, off, size)
		if err != nil {
			c.problem("pack", packName(id), "block at %d: %v", off, err)
			// Without this block's length the next one is where the index says.
			off = c.skip(&entries, off, size)
			continue
		}
		c.mu.Lock()
		c.report.Bytes += int64(h.length())
		c.mu.Unlock()
		for len(entries) > 0 && entries[0].loc.offset < off+int64(h.length()) {
			e := entries[0]
			entries = entries[1:]
			if why := checkBody(e, off, h, raw); why != "" {
				c.problemAt(kindOf(e), e.hash, "in pack %d at %d: %s", id, e.loc.offset, why)
			}
		}
		off += int64(h.length())
	}
	for _, e := range entries {
		c.problemAt(kindOf(e), e.hash, "in pack %d at %d: beyond its end", id, e.loc.offset)
	}
	return nil
}

// skip gives up the entries of the block at off and returns where to go on.
func (c *checker) skip(entries *[]stored, off, size int64) int64 {
	for len(*entries) > 0 {
		e := (*entries)[0]
		if e.loc.offset > off {
			return e.loc.offset
		}
		c.problemAt(kindOf(e), e.hash, "in pack %d at %d: its block cannot be read", e.loc.pack, e.loc.offset)
		*entries = (*entries)[1:]
	}
	return size
}

func checkBody(e stored, off int64, h blockHeader, raw []byte) string {
	switch {
	case e.loc.offset != off || e.loc.length != h.length():
		return "no block begins there, or one of another length"
	case e.blob != (h.kind == blobBlock):
		return "a block of another kind"
	case e.blob:
		if got := blobDomain.sum(raw); got != e.hash {
			return fmt.Sprintf("its bytes hash to %s", got)
		}
	case e.loc.slot >= h.count:
		return fmt.Sprintf("page %d of a block of %d", e.loc.slot, h.count)
	default:
		if got := HashPage(raw[e.loc.slot*h.unit : (e.loc.slot+1)*h.unit]); got != e.hash {
			return fmt.Sprintf("its bytes hash to %s", got)
		}
	}
	return ""
}

// whole reads and unpacks the block at off. Both results are valid until the
// next call.
func (f *fetcher) whole(id uint64, off, size int64) (blockHeader, []byte, error) {
	var head [blockHeaderBytes]byte
	if off+blockHeaderBytes > size {
		return blockHeader{}, nil, errTruncated
	}
	if err := f.s.packs.readAt(id, head[:], off); err != nil {
		return blockHeader{}, nil, err
	}
	h, err := decodeBlockHeader(head[:])
	if err != nil {
		return h, nil, err
	}
	if off+int64(h.length()) > size {
		return h, nil, errTruncated
	}
	f.in = slices.Grow(f.in[:0], h.length())[:h.length()]
	if err := f.s.packs.readAt(id, f.in, off); err != nil {
		return h, nil, err
	}
	h, raw, err := decodeBlock(f.raw, f.in, f.dec)
	if err == nil {
		f.raw = raw
	}
	return h, raw, err
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
