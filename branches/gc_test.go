package branches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// world is a model of a store: commits with what they hold, refs, HEADs.
type world struct {
	t      testing.TB
	s      *Store
	r      *rand.Rand
	prefix string // of branch names, to keep several worlds apart in one store
	spaces map[Hash]*space
	maps   map[Hash]Map
	up     map[Hash][]Hash
	refs   map[RefName]Hash
	heads  map[string]Hash
	serial int
}

func newWorld(t testing.TB, s *Store, r *rand.Rand, prefix string) *world {
	return &world{t: t, s: s, r: r, prefix: prefix, spaces: map[Hash]*space{}, maps: map[Hash]Map{}, up: map[Hash][]Hash{}, refs: map[RefName]Hash{}, heads: map[string]Hash{}}
}

// step does something at random that a user might.
func (w *world) step(ctx context.Context) error {
	names := slices.Sorted(maps.Keys(w.refs))
	switch n := w.r.IntN(10); {
	case n < 5 || len(names) == 0:
		return w.commit(ctx, names)
	case n < 6: // a branch goes to another commit, its old tip may be lost
		from, to := names[w.r.IntN(len(names))], names[w.r.IntN(len(names))]
		err := w.s.Update(ctx, Update{Refs: []RefUpdate{{Name: from, Old: w.refs[from], New: w.refs[to]}}})
		w.refs[from] = w.refs[to]
		return err
	case n < 8 && len(names) > 1:
		name := names[w.r.IntN(len(names))]
		err := w.s.Update(ctx, Update{Refs: []RefUpdate{{Name: name, Old: w.refs[name]}}})
		delete(w.refs, name)
		return err
	case n < 9: // a sandbox, detached
		id := fmt.Sprintf("%s-box-%d", w.prefix, w.r.IntN(3))
		at := w.refs[names[w.r.IntN(len(names))]]
		w.heads[id] = at
		return w.s.Update(ctx, Update{Heads: []HeadUpdate{{Sandbox: id, Head: Head{Commit: at}}}})
	default:
		for id := range w.heads {
			delete(w.heads, id)
			return w.s.Update(ctx, Update{Heads: []HeadUpdate{{Sandbox: id, Delete: true}}})
		}
		return nil
	}
}

func (w *world) commit(ctx context.Context, names []RefName) error {
	wr, err := w.s.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer wr.Close()
	w.serial++
	sp, base, parents := newSpace(700<<10, 1024), Map{}, []Hash(nil)
	name := BranchRef(fmt.Sprintf("%s-%d", w.prefix, w.serial))
	var old Hash
	if len(names) > 0 {
		from := names[w.r.IntN(len(names))]
		tip := w.refs[from]
		sp, base, parents = w.spaces[tip].clone(), w.maps[tip], []Hash{tip}
		if w.r.IntN(3) > 0 {
			name, old = from, tip
		}
		if other := names[w.r.IntN(len(names))]; w.refs[other] != tip && w.r.IntN(4) == 0 {
			parents = append(parents, w.refs[other])
		}
	}
	// Some contents come from a small pool, so that what was collected comes
	// back again and again.
	var changed []int64
	if w.r.IntN(2) == 0 {
		changed = sp.touch(rand.New(rand.NewPCG(uint64(w.r.IntN(4)), 1)), 60)
	} else {
		changed = sp.touch(w.r, 1+w.r.IntN(80))
	}
	m, _, err := wr.WriteMap(ctx, base, sp.size, sp.pageBytes, sp.changes(changed))
	if err != nil {
		return err
	}
	c := diskCommit(m, parents...)
	c.Message = fmt.Sprint(w.prefix, w.serial)
	id, err := wr.Commit(ctx, c, Update{Refs: []RefUpdate{{Name: name, Old: old, New: Self}}})
	if err != nil {
		return err
	}
	w.spaces[id], w.maps[id], w.up[id], w.refs[name] = sp, m, parents, id
	return nil
}

// reachable is what must survive a collection.
func (w *world) reachable() map[Hash]bool {
	out := map[Hash]bool{}
	var queue []Hash
	for _, h := range w.refs {
		queue = append(queue, h)
	}
	for _, h := range w.heads {
		queue = append(queue, h)
	}
	for len(queue) > 0 {
		h := queue[0]
		queue = queue[1:]
		if out[h] {
			continue
		}
		out[h] = true
		queue = append(queue, w.up[h]...)
	}
	return out
}

func collect(t testing.TB, s *Store, o GCOptions) (*GCPlan, GCResult) {
	t.Helper()
	p, err := s.PlanGC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Execute(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p, res
}

// wantExactly checks that the store holds what the worlds reach and no more.
func wantExactly(t testing.TB, s *Store, worlds ...*world) {
	t.Helper()
	u, err := s.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commits, chunks, nodes := 0, map[Hash]bool{}, map[Hash]bool{}
	for _, w := range worlds {
		for id := range w.reachable() {
			commits++
			if _, err := s.Commit(t.Context(), id); err != nil {
				t.Error(err)
			}
			for _, p := range w.spaces[id].pages {
				chunks[HashPage(p)] = true
			}
			nodesOf(t, s, w.maps[id], nodes)
		}
	}
	if int(u.Commits) != commits || int(u.Chunks) != len(chunks) {
		t.Errorf("got %d commits and %d pages, want %d and %d", u.Commits, u.Chunks, commits, len(chunks))
	}
	v := s.index.view()
	defer v.discard()
	got := 0
	if err := v.scanKeys([]byte{tableNode}, func([]byte) error { got++; return nil }); err != nil {
		t.Fatal(err)
	}
	if got != len(nodes) {
		t.Errorf("got %d nodes, want %d", got, len(nodes))
	}
}

func nodesOf(t testing.TB, s *Store, m Map, out map[Hash]bool) {
	var down func(h Hash, level int)
	down = func(h Hash, level int) {
		if h.IsZero() || level < 0 || out[h] {
			return
		}
		out[h] = true
		n, err := loadNode(s, h, level)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range n.kids {
			down(k, level-1)
		}
	}
	down(m.Root, m.rootLevel())
}

func packsSize(t testing.TB, s *Store) (n int64) {
	t.Helper()
	_, sizes, err := s.packs.list()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range sizes {
		n += size
	}
	return n
}

// Random lives, each with many collections: all that is reachable stays
// readable, the rest goes, and so do its bytes.
func TestGCKeepsWhatIsReachable(t *testing.T) {
	for seed := range uint64(6) {
		r := testRand(t, seed)
		dir := filepath.Join(memoryDir(t), "store")
		s := openStore(t, Options{Dir: dir})
		w := newWorld(t, s, r, "w")
		for range 6 {
			for range 12 {
				if err := w.step(t.Context()); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			p, res := collect(t, s, GCOptions{})
			if int64(len(p.Commits)) != res.Commits || p.Chunks != res.Chunks {
				t.Errorf("seed %d: planned %d commits and %d pages, removed %d and %d", seed, len(p.Commits), p.Chunks, res.Commits, res.Chunks)
			}
			wantExactly(t, s, w)
			for id := range w.reachable() {
				wantSpace(t, s, w.maps[id], w.spaces[id])
			}
			wantClean(t, s)
			if dead := mustUsage(t, s).DeadBytes; dead > packsSize(t, s)/rewriteWaste+1 {
				t.Errorf("seed %d: %d of %d bytes in packs are dead after gc", seed, dead, packsSize(t, s))
			}
			if r.IntN(3) == 0 { // now and then as another command
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openStore(t, Options{Dir: dir})
				w.s = s
			}
			if t.Failed() {
				t.FailNow()
			}
		}
		// Nothing left: everything goes.
		for name, h := range w.refs {
			update(t, s, Update{Refs: []RefUpdate{{Name: name, Old: h}}})
			delete(w.refs, name)
		}
		for id := range w.heads {
			update(t, s, Update{Heads: []HeadUpdate{{Sandbox: id, Delete: true}}})
			delete(w.heads, id)
		}
		collect(t, s, GCOptions{})
		wantExactly(t, s, w)
		if n := packsSize(t, s); n != 0 {
			t.Errorf("seed %d: an empty store has %d bytes in packs", seed, n)
		}
	}
}

func mustUsage(t testing.TB, s *Store) Usage {
	t.Helper()
	u, err := s.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// The same with several writers, and readers, at work while gc runs over and
// over. Whatever a writer commits must be whole, whenever gc looked.
func TestGCBesideWriters(t *testing.T) {
	s := openStore(t, Options{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writers, background := errgroup.Group{}, errgroup.Group{}
	var worlds []*world
	for i := range 3 {
		w := newWorld(t, s, testRand(t, 100+uint64(i)), fmt.Sprint("w", i))
		worlds = append(worlds, w)
		writers.Go(func() error {
			for range 60 {
				if err := w.step(ctx); err != nil {
					return err
				}
				for _, h := range w.refs { // read one back at once
					f, err := os.CreateTemp(memoryDir(t), "")
					if err != nil {
						return err
					}
					err = errors.Join(s.Materialize(ctx, w.maps[h], f, MaterializeOptions{Verify: true}), f.Close(), os.Remove(f.Name()))
					if err != nil {
						return err
					}
					break
				}
			}
			return nil
		})
	}
	runs := 0
	background.Go(func() error {
		for ctx.Err() == nil {
			p, err := s.PlanGC(ctx, GCOptions{})
			if err == nil {
				_, err = p.Execute(ctx)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			runs++
		}
		return nil
	})
	if err := writers.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := background.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d collections", runs)
	collect(t, s, GCOptions{})
	wantExactly(t, s, worlds...)
	for _, w := range worlds {
		for id := range w.reachable() {
			wantSpace(t, s, w.maps[id], w.spaces[id])
		}
	}
	wantClean(t, s)
}

// What a writer has in hand survives gc before anything refers to it: pages it
// found stored although nothing reaches them, and a parent map whose commit is
// dropped meanwhile.
func TestGCRespectsLeases(t *testing.T) {
	s := openStore(t, Options{})
	r := testRand(t, 1)
	w0 := newWriter(t, s)
	sp := newSpace(4<<20, 4096)
	sp.touch(r, 600)
	parent, _ := writeMap(t, w0, Map{}, sp, sp.all())
	id := commit(t, w0, diskCommit(parent), Update{Refs: []RefUpdate{{Name: BranchRef("gone"), New: Self}}})
	w0.Close()

	over := newWriter(t, s)  // builds on the map
	again := newWriter(t, s) // finds the same pages by themselves
	next := sp.clone()
	changed := next.touch(r, 10)
	a, _ := writeMap(t, over, parent, next, next.changes(changed))
	b, st := writeMap(t, again, Map{}, sp, sp.all())
	if st.PagesNew != 0 || b != parent {
		t.Fatalf("stored %d pages again as %v, want none and %v", st.PagesNew, b, parent)
	}
	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("gone"), Old: id}}})
	if _, res := collect(t, s, GCOptions{}); res.Commits != 1 {
		t.Errorf("removed %d commits, want 1", res.Commits)
	}
	// A collected commit cannot be brought back by a ref.
	if err := s.Update(t.Context(), Update{Refs: []RefUpdate{{Name: BranchRef("back"), New: id}}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	ca := commit(t, over, diskCommit(a), Update{Refs: []RefUpdate{{Name: BranchRef("over"), New: Self}}})
	cb := commit(t, again, diskCommit(b), Update{Refs: []RefUpdate{{Name: BranchRef("again"), New: Self}}})
	over.Close()
	again.Close()
	wantSpace(t, s, a, next)
	wantSpace(t, s, b, sp)
	wantClean(t, s)

	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("over"), Old: ca}, {Name: BranchRef("again"), Old: cb}}})
	collect(t, s, GCOptions{})
	if n := packsSize(t, s); n != 0 {
		t.Errorf("%d bytes are left with nothing to keep them", n)
	}
	w := newWriter(t, s)
	if _, _, err := w.WriteMap(t.Context(), parent, sp.size, sp.pageBytes, sp.changes(nil)); !errors.Is(err, ErrNotFound) {
		t.Errorf("building on a collected map: got %v, want ErrNotFound", err)
	}
}

// Between plan and execution the world moves on.
func TestGCPlanGoesStale(t *testing.T) {
	s := openStore(t, Options{})
	h := newHistory(t, s)
	saved, lost, late := h.commit("saved"), h.commit("lost"), h.commit("late")
	h.w.Close()
	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("late"), New: late}}})
	p, err := s.PlanGC(t.Context(), GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Commits) != 2 {
		t.Fatalf("planned to remove %d commits, want 2", len(p.Commits))
	}
	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("saved"), New: saved}, {Name: BranchRef("late"), Old: late}}})
	res, err := p.Execute(t.Context())
	if err != nil || res.Commits != 1 {
		t.Errorf("removed %d commits, %v, want 1", res.Commits, err)
	}
	for name, want := range map[string]bool{"saved": true, "lost": false, "late": true} {
		_, err := s.Commit(t.Context(), h.ids[name])
		if got := err == nil; got != want {
			t.Errorf("%s: there %v, want %v", name, got, want)
		}
	}
	_ = lost
}

func TestGCOptions(t *testing.T) {
	now := newClock()
	s := openStore(t, Options{Now: now.now})
	h := newHistory(t, s)
	old := h.commitAt("old", now.t.Add(-48*time.Hour))
	young := h.commitAt("young", now.t.Add(-time.Hour), "old")
	extra := h.commitAt("extra", now.t.Add(-48*time.Hour))
	logged := h.commitAt("logged", now.t.Add(-48*time.Hour))
	tip := h.commitAt("tip", now.t.Add(-48*time.Hour))
	h.commitAt("lost", now.t.Add(-48*time.Hour))
	h.w.Close()
	update(t, s, Update{Heads: []HeadUpdate{{Sandbox: "box", Head: Head{Commit: tip}, Reflog: []ReflogEntry{
		{Commit: logged, Time: now.t.Add(-30 * time.Hour)},
		{Commit: tip, Time: now.t.Add(-29 * time.Hour)},
	}}}})
	there := func(want ...Hash) {
		t.Helper()
		if got := mustUsage(t, s).Commits; int(got) != len(want) {
			t.Errorf("%d commits are left, want %d", got, len(want))
		}
		for _, id := range want {
			if _, err := s.Commit(t.Context(), id); err != nil {
				t.Errorf("%s: %v", h.names[id], err)
			}
		}
	}
	collect(t, s, GCOptions{ExtraRoots: []Hash{extra}, Grace: 24 * time.Hour})
	there(old, young, extra, logged, tip)
	collect(t, s, GCOptions{ReflogExpire: 31 * time.Hour})
	there(logged, tip)
	// The newest entry of a reflog stays, however old.
	if _, res := collect(t, s, GCOptions{ReflogExpire: time.Hour}); res.ReflogEntries != 1 {
		t.Errorf("%d reflog entries went, want 1", res.ReflogEntries)
	}
	there(tip)
	if _, err := s.PlanGC(t.Context(), GCOptions{ExtraRoots: []Hash{extra}}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a root that does not exist: got %v, want ErrCorrupt", err)
	}
	wantClean(t, s)
}

// A reader that has found out where its pages are gets them, though gc moves
// them and drops the pack meanwhile.
func TestGCMovesPagesUnderReader(t *testing.T) {
	s := openStore(t, Options{})
	r := testRand(t, 1)
	w := newWriter(t, s)
	keep, drop := newSpace(4<<20, 4096), newSpace(4<<20, 4096)
	keep.touch(r, 300)
	drop.touch(r, 900)
	d, _ := writeMap(t, w, Map{}, drop, drop.all())
	m, _ := writeMap(t, w, Map{}, keep, keep.all())
	commit(t, w, diskCommit(d), Update{})
	commit(t, w, diskCommit(m), Update{Refs: []RefUpdate{{Name: BranchRef("keep"), New: Self}}})
	w.Close()

	end, err := s.beginRead(m)
	if err != nil {
		t.Fatal(err)
	}
	wants, err := s.locate(t.Context(), m, 1)
	if err != nil {
		t.Fatal(err)
	}
	old := wants[0].loc.pack
	_, res := collect(t, s, GCOptions{})
	if res.PacksRewritten != 1 || res.FreedBytes <= 0 {
		t.Errorf("got %+v, want one pack rewritten", res)
	}
	if _, err := os.Stat(s.packs.path(old)); err != nil {
		t.Errorf("the pack went away under its reader: %v", err)
	}
	f := newFetcher(s, 4096)
	for job := range readJobs(wants) {
		if err := f.fetch(job, func(run []want, data []byte) error { return verifyRun(m, run, data) }); err != nil {
			t.Fatal(err)
		}
	}
	f.close()
	end()
	if _, err := os.Stat(s.packs.path(old)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pack is there after its last reader left: %v", err)
	}
	wantSpace(t, s, m, keep)
	wantClean(t, s)
}

// What a plan promises is what Execute does: a pack with too little dead in it
// waits in both.
func TestGCPromisesWhatItDoes(t *testing.T) {
	for _, tt := range []struct {
		dead    int
		rewrite bool
	}{{100, false}, {600, true}} {
		dir := filepath.Join(memoryDir(t), "store")
		s := openStore(t, Options{Dir: dir})
		r := testRand(t, 1)
		w := newWriter(t, s)
		keep := newSpace(64<<20, 4096)
		keep.touch(r, 3000)
		m, _ := writeMap(t, w, Map{}, keep, keep.all())
		drop := keep.clone()
		d, _ := writeMap(t, w, m, drop, drop.changes(drop.touch(r, tt.dead)))
		commit(t, w, diskCommit(m), Update{Refs: []RefUpdate{{Name: BranchRef("keep"), New: Self}}})
		commit(t, w, diskCommit(d), Update{})
		w.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, Options{Dir: dir})
		plan, res := collect(t, s, GCOptions{})
		if (plan.FreedBytes > 0) != tt.rewrite || (res.FreedBytes > 0) != tt.rewrite || (plan.WaitingBytes > 0) == tt.rewrite || res.WaitingBytes != plan.WaitingBytes {
			t.Errorf("%d pages dead: planned %d freed %d waiting, did %d and %d; rewritten: want %v",
				tt.dead, plan.FreedBytes, plan.WaitingBytes, res.FreedBytes, res.WaitingBytes, tt.rewrite)
		}
	}
}

// Records of nodes that only serve as bases are moved aside and back.
func TestGCKeepsBasesOfDeltas(t *testing.T) {
	s := openStore(t, Options{})
	r := testRand(t, 1)
	sp := newSpace(2<<20, 4096)
	sp.touch(r, 400)
	first := sp.clone()
	w := newWriter(t, s)
	m0, _ := writeMap(t, w, Map{}, sp, sp.all())
	c0 := commit(t, w, diskCommit(m0), Update{Refs: []RefUpdate{{Name: BranchRef("first"), New: Self}}})
	changed := slices.Sorted(maps.Keys(sp.pages))[:5]
	for _, i := range changed {
		sp.pages[i] = fill(r, 4096)
	}
	m1, _ := writeMap(t, w, m0, sp, sp.changes(changed))
	commit(t, w, diskCommit(m1), Update{Refs: []RefUpdate{{Name: BranchRef("second"), New: Self}}})
	w.Close()
	if rec, _, err := s.nodeRecord(m1.Root); err != nil || rec.depth == 0 {
		t.Fatalf("got %+v, %v, want a delta", rec, err)
	}
	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("first"), Old: c0}}})
	collect(t, s, GCOptions{})
	stored := func(table byte) bool {
		v := s.index.view()
		defer v.discard()
		ok, err := v.has(hashKey(table, m0.Root))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if stored(tableNode) || !stored(tableBase) {
		t.Errorf("the base is among nodes %v, among bases %v", stored(tableNode), stored(tableBase))
	}
	wantSpace(t, s, m1, sp)
	wantClean(t, s)
	// The first state comes back: its record must be the one others rest on.
	w = newWriter(t, s)
	back, st := writeMap(t, w, m1, first, first.all())
	if back != m0 || st.PagesNew == 0 {
		t.Fatalf("got %v with %d new pages, want %v and some", back, st.PagesNew, m0)
	}
	commit(t, w, diskCommit(back), Update{Refs: []RefUpdate{{Name: BranchRef("back"), New: Self}}})
	w.Close()
	if !stored(tableNode) || stored(tableBase) {
		t.Errorf("the node is among nodes %v, among bases %v", stored(tableNode), stored(tableBase))
	}
	wantSpace(t, s, back, first)
	wantSpace(t, s, m1, sp)
	wantClean(t, s)
}

// The index gets smaller too, within gc and for good.
func TestGCShrinksIndex(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	s := openStore(t, Options{Dir: dir})
	g := newFakeGuest(testRand(t, 1), 40000, 30000, 0)
	w := newWriter(t, s)
	m, _, err := w.WriteMap(t.Context(), Map{}, 40000*MemoryPageBytes, MemoryPageBytes, g.seq(g.order))
	if err != nil {
		t.Fatal(err)
	}
	commit(t, w, diskCommit(m), Update{})
	w.Close()
	reopen := func() int64 {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, Options{Dir: dir})
		return s.index.bytes()
	}
	full := reopen()
	if full < 1<<20 {
		t.Fatalf("the index of %d pages has %d bytes", len(g.order), full)
	}
	_, res := collect(t, s, GCOptions{})
	if res.Chunks != int64(len(g.order)) || res.FreedBytes < full/2 {
		t.Errorf("got %+v, want %d pages gone and most of the index's %d bytes", res, len(g.order), full)
	}
	if now := s.index.bytes(); now > full/20 {
		t.Errorf("the index has %d bytes after gc, %d before", now, full)
	}
	if now := reopen(); now > full/20 {
		t.Errorf("the index has %d bytes after gc and a restart, %d before", now, full)
	}
	wantClean(t, s)
}
