package branches

import (
	"context"
	"fmt"
)

// sweepBatch is how many objects go at a time. Writers wait meanwhile.
const sweepBatch = 4096

// gcRun is a collection under way.
type gcRun struct {
	s     *Store
	ended []*lease // leases that ended since it began
	// live is set once what is dead was decided; from then on nothing that is
	// not in it may become reachable, save under a lease.
	live   *liveSet
	result GCResult
}

// Execute removes what the plan names and what is still unreachable; commits
// made since the plan lose nothing. Writers and readers may work beside it. It
// may be broken off at any time: what is left is consistent, and the next gc
// takes up the rest.
//
// Order: commits, nodes from the root down, pages and blobs, then packs. So
// whatever is in the index still has all it names.
func (p *GCPlan) Execute(ctx context.Context) (GCResult, error) {
	s := p.s
	end, err := s.begin()
	if err != nil {
		return GCResult{}, err
	}
	defer end()
	s.collecting.Lock()
	defer s.collecting.Unlock()
	run := &gcRun{s: s}
	s.leases.setRun(run)
	defer s.leases.setRun(nil)
	// Collecting is how room is made: it gets by with less than a writer.
	if err := useReserve(s.dir); err != nil {
		return run.result, fmt.Errorf("gc: %w", err)
	}
	before := s.index.bytes()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return run.decide(ctx, p) },
		run.sweepNodes,
		run.sweepBodies,
		run.sweepPacks,
		run.compact,
	} {
		if err := step(ctx); err != nil {
			return run.result, fmt.Errorf("gc: %w", err)
		}
	}
	run.result.FreedBytes = max(0, run.result.FreedBytes+before-s.index.bytes())
	return run.result, nil
}

func (ls *leases) setRun(r *gcRun) {
	ls.inner.Lock()
	defer ls.inner.Unlock()
	ls.run = r
}

// decide fixes what is dead and removes the dead commits. No ref can be set to
// a commit that is gone, so what hung under them alone is dead for good.
func (r *gcRun) decide(ctx context.Context, p *GCPlan) error {
	s := r.s
	planned := map[Hash]bool{}
	for _, h := range p.Commits {
		planned[h] = true
	}
	live := p.live
	if s.collections.Add(1) != p.collection+1 {
		// Since the plan another collection has been, and a node it removed may
		// have come back under another record.
		live = newLiveSet()
	}
	// First beside those who change the roots; then, while they wait, what they
	// have changed meanwhile.
	if err := r.mark(ctx, live, p.opts, planned); err != nil {
		return err
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	if err := r.mark(ctx, live, p.opts, planned); err != nil {
		return err
	}
	if err := r.removeCommits(p, live); err != nil {
		return err
	}
	r.live = live
	return nil
}

// mark adds what is reachable now. A commit the plan did not name stays, even if
// nothing reaches it any more.
func (r *gcRun) mark(ctx context.Context, live *liveSet, o GCOptions, planned map[Hash]bool) error {
	v, roots, err := r.s.roots(o)
	if err != nil {
		return err
	}
	defer v.discard()
	err = v.scanKeys([]byte{tableCommit}, func(key []byte) error {
		h, err := keyHash(key)
		if err == nil && !planned[h] {
			roots.commits = append(roots.commits, h)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return live.mark(ctx, v, roots)
}

// removeCommits removes dead commits and expired reflog entries. The caller
// holds the leases whole.
func (r *gcRun) removeCommits(p *GCPlan, live *liveSet) error {
	v, roots, err := r.s.roots(p.opts)
	if err != nil {
		return err
	}
	v.discard()
	b := r.s.index.batch("gc commits")
	defer b.cancel()
	for _, key := range roots.expired {
		if err := b.delete(key); err != nil {
			return err
		}
		r.result.ReflogEntries++
	}
	for _, h := range p.Commits {
		if live.hasCommit(h) {
			continue
		}
		if err := b.delete(hashKey(tableCommit, h)); err != nil {
			return err
		}
		r.result.Commits++
	}
	return b.flush()
}

// sweepNodes removes dead nodes, parents before children.
func (r *gcRun) sweepNodes(ctx context.Context) error {
	var dead [maxLevel + 1][]Hash
	var bases []Hash
	v := r.s.index.view()
	err := v.scan([]byte{tableNode}, func(key, val []byte) error {
		if h, ok := deadKey(key, r.live.hasNode); ok {
			if len(val) < 3 || val[2] > maxLevel {
				return &CorruptError{Kind: "node", Object: h.String(), Reason: "malformed record"}
			}
			dead[val[2]] = append(dead[val[2]], h)
		}
		return nil
	})
	if err == nil {
		err = v.scanKeys([]byte{tableBase}, func(key []byte) error {
			if h, ok := deadKey(key, r.live.hasBase); ok {
				bases = append(bases, h)
			}
			return nil
		})
	}
	v.discard()
	if err != nil {
		return err
	}
	for level := maxLevel; level >= 0; level-- {
		if err := r.inBatches(ctx, "gc nodes", dead[level], r.removeNode); err != nil {
			return err
		}
	}
	return r.inBatches(ctx, "gc nodes", bases, func(v *view, b *batch, h Hash, inUse keeping) (bool, error) {
		if inUse.object || inUse.base {
			return false, nil
		}
		return true, b.delete(hashKey(tableBase, h))
	}, &r.result.Nodes)
}

// removeNode removes a node, or moves it to where only deltas look.
func (r *gcRun) removeNode(v *view, b *batch, h Hash, inUse keeping) (bool, error) {
	if inUse.object {
		return false, nil
	}
	if inUse.base || r.live.hasBase(h) {
		_, record, err := v.storedNode(h)
		if err != nil || record == nil {
			return false, err
		}
		if err := b.set(hashKey(tableBase, h), record); err != nil {
			return false, err
		}
	} else {
		r.result.Nodes++
	}
	return true, b.delete(hashKey(tableNode, h))
}

// sweepBodies removes what the index says of dead pages and blobs.
func (r *gcRun) sweepBodies(ctx context.Context) error {
	for _, t := range []struct {
		table byte
		alive func(Hash) bool
		n     *int64
	}{
		{tableChunk, r.live.hasChunk, &r.result.Chunks},
		{tableBlob, r.live.hasBlob, &r.result.Blobs},
	} {
		var dead []Hash
		v := r.s.index.view()
		err := v.scanKeys([]byte{t.table}, func(key []byte) error {
			if h, ok := deadKey(key, t.alive); ok {
				dead = append(dead, h)
			}
			return nil
		})
		v.discard()
		if err != nil {
			return err
		}
		err = r.inBatches(ctx, "gc bodies", dead, func(v *view, b *batch, h Hash, inUse keeping) (bool, error) {
			if inUse.object {
				return false, nil
			}
			return true, b.delete(hashKey(t.table, h))
		}, t.n)
		if err != nil {
			return err
		}
	}
	return nil
}

// keeping says how leases hold an object.
type keeping struct{ object, base bool }

// inBatches removes objects some at a time, deciding about each with all leases
// held: what a writer has found stored by then stays, and what is gone by then a
// writer stores anew.
func (r *gcRun) inBatches(ctx context.Context, step string, dead []Hash, remove func(*view, *batch, Hash, keeping) (bool, error), counts ...*int64) error {
	one := func(hashes []Hash) error {
		s := r.s
		s.leases.mu.Lock()
		defer s.leases.mu.Unlock()
		leases := s.leases.all()
		v := s.index.view()
		defer v.discard()
		b := s.index.batch(step)
		defer b.cancel()
		for _, h := range hashes {
			var k keeping
			for _, l := range leases {
				l.mu.Lock()
				_, object := l.seen[h]
				_, base := l.bases[h]
				l.mu.Unlock()
				k.object, k.base = k.object || object, k.base || base
			}
			removed, err := remove(v, b, h, k)
			if err != nil {
				return err
			}
			if removed {
				for _, n := range counts {
					*n++
				}
			}
		}
		return b.flush()
	}
	for len(dead) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(dead), sweepBatch)
		if err := one(dead[:n]); err != nil {
			return err
		}
		dead = dead[n:]
	}
	return nil
}

// compact lets the file system have the space of deleted index entries, when
// they are many.
func (r *gcRun) compact(ctx context.Context) error {
	s := r.s
	deleted := (r.result.Chunks + r.result.Nodes) * indexEntryBytes
	if deleted < 1<<20 && deleted < s.index.bytes()/8 {
		return nil
	}
	if err := s.needSpace(s.index.bytes()); err != nil {
		s.log.Info("index is not compacted", "store", s.dir, "reason", err)
		return nil
	}
	s.flush.Lock()
	defer s.flush.Unlock()
	s.update.Lock()
	defer s.update.Unlock()
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	return s.index.compact()
}
