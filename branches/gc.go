package branches

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// GCOptions for PlanGC.
type GCOptions struct {
	// ExtraRoots are commits kept beside those refs, HEADs and reflogs reach.
	ExtraRoots []Hash
	// Grace keeps unreachable commits created less than that ago.
	Grace time.Duration
	// ReflogExpire forgets reflog entries older than that, save the newest of
	// each sandbox; 0 keeps all.
	ReflogExpire time.Duration
}

// GCPlan says what a collection would do. It holds no lock and no lease.
type GCPlan struct {
	Commits        []Hash // unreachable commits
	ReflogEntries  int64  // expired
	Nodes, Blobs   int64  // unreachable tree nodes and blobs
	Chunks         int64  // unreachable chunks
	LiveChunks     int64
	PacksRemoved   int   // packs with nothing alive in them
	PacksRewritten int   // packs with much dead in them
	FreedBytes     int64 // estimate of what the disk gets back
	// WaitingBytes are dead too, in packs with too little dead in them to be
	// rewritten yet.
	WaitingBytes int64

	s    *Store
	opts GCOptions
	live *liveSet
	// collection counts the collections there had been.
	collection int64
}

// GCResult says what Execute did.
type GCResult struct {
	Commits, ReflogEntries       int64
	Nodes, Blobs, Chunks         int64
	PacksRemoved, PacksRewritten int
	FreedBytes                   int64 // by how much the store's files shrank
	WaitingBytes                 int64 // dead, and left for a later collection
}

// PlanGC finds what no root reaches. Roots: refs, HEADs, reflogs, live writers
// and readers, extra roots, commits within grace. It changes nothing; a store
// in which something reachable is missing is refused with ErrCorrupt.
func (s *Store) PlanGC(ctx context.Context, o GCOptions) (*GCPlan, error) {
	end, err := s.beginRead()
	if err != nil {
		return nil, err
	}
	defer end()
	p := &GCPlan{s: s, opts: o, live: newLiveSet(), collection: s.collections.Load()}
	v, roots, err := s.roots(o)
	if err != nil {
		return nil, fmt.Errorf("plan gc: %w", err)
	}
	defer v.discard()
	p.ReflogEntries = int64(len(roots.expired))
	if err := p.live.mark(ctx, v, roots); err != nil {
		return nil, fmt.Errorf("plan gc: %w", err)
	}
	if err := p.count(ctx, v); err != nil {
		return nil, fmt.Errorf("plan gc: %w", err)
	}
	return p, nil
}

// count goes through the index to see what the live set leaves out.
func (p *GCPlan) count(ctx context.Context, v *view) error {
	live := p.live
	err := v.scanKeys([]byte{tableCommit}, func(key []byte) error {
		if h, ok := deadKey(key, live.hasCommit); ok {
			p.Commits = append(p.Commits, h)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range []struct {
		table byte
		alive func(Hash) bool
		n     *int64
	}{
		{tableNode, live.hasNode, &p.Nodes},
		{tableBase, live.hasBase, &p.Nodes},
		{tableBlob, live.hasBlob, &p.Blobs},
		{tableChunk, live.hasChunk, &p.Chunks},
	} {
		err := v.scanKeys([]byte{t.table}, func(key []byte) error {
			if _, ok := deadKey(key, t.alive); ok {
				*t.n++
			} else if t.table == tableChunk {
				p.LiveChunks++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	usage, err := p.s.packUsage(ctx, v, live, p.s.packs.busy())
	if err != nil {
		return err
	}
	for _, u := range usage {
		switch {
		case u.empty():
			p.PacksRemoved++
			p.FreedBytes += u.size
		case u.worthRewriting():
			p.PacksRewritten++
			p.FreedBytes += u.waste()
		default:
			p.WaitingBytes += u.waiting()
		}
	}
	return nil
}

// deadKey returns the hash of a key when it is not alive. A key that is no hash
// is left alone: fsck reports it.
func deadKey(key []byte, alive func(Hash) bool) (Hash, bool) {
	h, err := keyHash(key)
	if err != nil || alive(h) {
		return Hash{}, false
	}
	return h, true
}

// gcRoots is where marking starts.
type gcRoots struct {
	commits []Hash
	maps    map[Hash]int // pinned trees: root → level
	expired [][]byte     // keys of reflog entries that count no more
}

// roots collects them, from the leases and from a picture of the index that it
// returns as well, for the walk from them. The leases come first: what they
// name must be in the picture.
func (s *Store) roots(o GCOptions) (_ *view, r gcRoots, err error) {
	r = gcRoots{commits: append([]Hash(nil), o.ExtraRoots...), maps: map[Hash]int{}}
	for _, l := range s.leases.all() {
		l.mu.Lock()
		maps.Copy(r.maps, l.roots)
		r.commits = slices.AppendSeq(r.commits, maps.Keys(l.commits))
		l.mu.Unlock()
	}
	v := s.index.view()
	defer func() {
		if err != nil {
			v.discard()
		}
	}()
	refs, err := v.refs("")
	if err != nil {
		return nil, r, err
	}
	for _, ref := range refs {
		r.commits = append(r.commits, ref.Commit)
	}
	heads, err := v.heads()
	if err != nil {
		return nil, r, err
	}
	for _, h := range heads {
		for _, c := range []Hash{h.Commit, h.Head.Commit} {
			if !c.IsZero() {
				r.commits = append(r.commits, c)
			}
		}
	}
	if err := s.reflogRoots(v, heads, o.ReflogExpire, &r); err != nil {
		return nil, r, err
	}
	if o.Grace > 0 {
		if err := s.youngRoots(v, s.now().Add(-o.Grace), &r); err != nil {
			return nil, r, err
		}
	}
	return v, r, nil
}

// youngRoots adds commits created after since.
func (s *Store) youngRoots(v *view, since time.Time, r *gcRoots) error {
	return v.scanKeys([]byte{tableCommit}, func(key []byte) error {
		h, err := keyHash(key)
		if err != nil {
			return &CorruptError{Kind: "commit", Object: fmt.Sprintf("%x", key), Reason: err.Error()}
		}
		c, _, err := v.commit(h)
		if err == nil && c.Created.After(since) {
			r.commits = append(r.commits, h)
		}
		return err
	})
}

// reflogRoots sorts reflog entries into roots and expired ones. Entries of a
// sandbox without a HEAD are what a deletion left behind.
func (s *Store) reflogRoots(v *view, heads map[string]HeadState, expire time.Duration, r *gcRoots) error {
	var cutoff time.Time
	if expire > 0 {
		cutoff = s.now().Add(-expire)
	}
	type entry struct {
		key    []byte
		commit Hash
	}
	var pending *entry // expired, unless it proves to be its sandbox's newest
	sandboxOf := func(key []byte) []byte { return key[1:max(1, len(key)-9)] }
	err := v.scan([]byte{tableReflog}, func(key, val []byte) error {
		e, err := decodeReflog(val)
		if err != nil {
			return &CorruptError{Kind: "reflog", Object: fmt.Sprintf("%q", key), Reason: err.Error()}
		}
		sandbox := sandboxOf(key)
		if pending != nil {
			if bytes.Equal(sandboxOf(pending.key), sandbox) {
				r.expired = append(r.expired, pending.key)
			} else {
				r.commits = append(r.commits, pending.commit)
			}
			pending = nil
		}
		switch _, ok := heads[string(sandbox)]; {
		case !ok:
			r.expired = append(r.expired, bytes.Clone(key))
		case e.Time.Before(cutoff):
			pending = &entry{bytes.Clone(key), e.Commit}
		default:
			r.commits = append(r.commits, e.Commit)
		}
		return nil
	})
	if pending != nil {
		r.commits = append(r.commits, pending.commit)
	}
	return err
}
