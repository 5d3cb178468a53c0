package branches

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
)

// fakeGuest is guest memory made up on the fly: page i at version v has bytes
// that depend on both, body of them random, so that a guest needs no room.
type fakeGuest struct {
	body    int
	version map[int64]uint32
	order   []int64
}

func newFakeGuest(r *rand.Rand, pages, used int64, body int) *fakeGuest {
	g := &fakeGuest{version: map[int64]uint32{}, body: body}
	for i := range pages {
		if r.Int64N(pages) < used {
			g.version[i] = 1
			g.order = append(g.order, i)
		}
	}
	return g
}

func (g *fakeGuest) page(buf []byte, i int64) {
	clear(buf)
	binary.LittleEndian.PutUint64(buf, uint64(i)+1)
	binary.LittleEndian.PutUint32(buf[8:], g.version[i])
	if g.body > 0 {
		r := rand.New(rand.NewPCG(uint64(i), uint64(g.version[i])))
		for at := 16; at < g.body; at += 8 {
			binary.LittleEndian.PutUint64(buf[at:], r.Uint64())
		}
	}
}

func (g *fakeGuest) seq(index []int64) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		buf := make([]byte, MemoryPageBytes)
		for _, i := range index {
			g.page(buf, i)
			if !yield(Page{i, buf}, nil) {
				return
			}
		}
	}
}

// change dirties n pages: most of them from the part of memory that programs
// keep writing to, a few anywhere.
func (g *fakeGuest) change(r *rand.Rand, n int) []int64 {
	hot := g.order[len(g.order)/3 : len(g.order)/3+2*n]
	changed := map[int64]bool{}
	for len(changed) < n {
		i := hot[r.IntN(len(hot))]
		if r.IntN(20) == 0 {
			i = g.order[r.IntN(len(g.order))]
		}
		g.version[i]++
		changed[i] = true
	}
	out := make([]int64, 0, n)
	for i := range changed {
		out = append(out, i)
	}
	slices.Sort(out)
	return out
}

// The tip of a long history is read with little more effort than a first
// commit. Reads are counted, for a clock would measure the machine.
func TestDepthDoesNotSlowReading(t *testing.T) {
	depth := 1000
	if testing.Short() {
		depth = 200
	}
	r := testRand(t, 1)
	s := openStore(t, Options{})
	const pages = 64 << 20 / MemoryPageBytes
	g := newFakeGuest(r, pages, pages/2, 1024)
	var tip Hash
	var m Map
	extend := func(changed []int64) {
		w := newWriter(t, s)
		next, _, err := w.WriteMap(t.Context(), m, pages*MemoryPageBytes, MemoryPageBytes, g.seq(changed))
		if err != nil {
			t.Fatal(err)
		}
		c := diskCommit(next)
		if !tip.IsZero() {
			c.Parents = []Hash{tip}
		}
		tip = commit(t, w, c, Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: tip, New: Self}}})
		m = next
		w.Close()
	}
	effort := func() (reads, bytes, lookups int64) {
		f := memoryFile(t)
		defer f.Close()
		r0, b0, l0 := s.packs.reads.Load(), s.packs.readBytes.Load(), s.index.gets.Load()
		if err := s.Materialize(t.Context(), m, f, MaterializeOptions{Verify: true}); err != nil {
			t.Fatal(err)
		}
		return s.packs.reads.Load() - r0, s.packs.readBytes.Load() - b0, s.index.gets.Load() - l0
	}
	extend(g.order)
	reads1, bytes1, lookups1 := effort()
	for range depth {
		extend(g.change(r, 120))
	}
	reads, bytes, lookups := effort()
	t.Logf("depth 1: %d reads of %d bytes, %d lookups; depth %d: %d reads of %d bytes, %d lookups", reads1, bytes1, lookups1, depth, reads, bytes, lookups)
	if lookups > lookups1*13/10 {
		t.Errorf("%d lookups, %d at depth 1", lookups, lookups1)
	}
	// A commit's pages that are still of use lie close together.
	if reads > reads1+int64(depth) || bytes > 3*bytes1 {
		t.Errorf("%d reads of %d bytes, %d of %d at depth 1", reads, bytes, reads1, bytes1)
	}
	if _, err := s.Resolve(t.Context(), fmt.Sprintf("main~%d", depth), nil); err != nil {
		t.Error(err)
	}
	// gc of all but the tip brings the effort back to about where it began.
	update(t, s, Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: tip}}})
	w := newWriter(t, s)
	alone := commit(t, w, diskCommit(m), Update{Refs: []RefUpdate{{Name: BranchRef("alone"), New: Self}}})
	w.Close()
	before := packsSize(t, s)
	_, res := collect(t, s, GCOptions{})
	if res.Commits != int64(depth)+1 || packsSize(t, s) > before/2 {
		t.Errorf("gc removed %d commits and left %d of %d bytes", res.Commits, packsSize(t, s), before)
	}
	reads, bytes, lookups = effort()
	t.Logf("after gc: %d reads of %d bytes, %d lookups", reads, bytes, lookups)
	if bytes > 2*bytes1 {
		t.Errorf("after gc: %d bytes read, %d at depth 1", bytes, bytes1)
	}
	_ = alone
	wantClean(t, s)
}

// A commit of some scattered pages of a 512 MiB guest costs little beside the
// pages: what the tree and the index add is counted here, commit by commit, and
// at the end on disk.
func TestMetadataIsSmall(t *testing.T) {
	r := testRand(t, 1)
	dir := filepath.Join(memoryDir(t), "store")
	s := openStore(t, Options{Dir: dir})
	const pages = 512 << 20 / MemoryPageBytes
	g := newFakeGuest(r, pages, 30000, 0)
	w := newWriter(t, s)
	m, _, err := w.WriteMap(t.Context(), Map{}, pages*MemoryPageBytes, MemoryPageBytes, g.seq(g.order))
	if err != nil {
		t.Fatal(err)
	}
	commit(t, w, diskCommit(m), Update{})
	w.Close()
	tables := func() int64 { // after a restart, when everything is in tables
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, Options{Dir: dir})
		return s.index.bytes()
	}
	start, packs := tables(), packsSize(t, s)
	const commits = 20
	worst, counted := int64(0), int64(0)
	for range commits {
		changed := map[int64]bool{}
		for len(changed) < 2400 { // anywhere: the worst there is for the tree
			i := g.order[r.IntN(len(g.order))]
			g.version[i]++
			changed[i] = true
		}
		var index []int64
		for i := range changed {
			index = append(index, i)
		}
		slices.Sort(index)
		w := newWriter(t, s)
		before := packsSize(t, s)
		next, st, err := w.WriteMap(t.Context(), m, pages*MemoryPageBytes, MemoryPageBytes, g.seq(index))
		if err != nil {
			t.Fatal(err)
		}
		commit(t, w, diskCommit(next), Update{})
		w.Close()
		if st.PagesNew != 2400 || st.PagesChanged != 2400 {
			t.Errorf("got %+v, want 2400 pages", st)
		}
		metadata := st.BytesStored - (packsSize(t, s) - before)
		worst, counted = max(worst, metadata), counted+metadata
		m = next
	}
	perCommit := (tables() - start) / commits
	t.Logf("metadata: %d bytes a commit on disk, %d as counted, %d at worst; packs %d bytes a commit", perCommit, counted/commits, worst, (packsSize(t, s)-packs)/commits)
	if perCommit > 350<<10 || worst > 512<<10 {
		t.Errorf("metadata of a commit takes %d bytes, %d at worst", perCommit, worst)
	}
	if d := counted/commits - perCommit; d > perCommit/8 || d < -perCommit/8 {
		t.Errorf("WriteMap counts %d bytes, the disk %d", counted/commits, perCommit)
	}
	wantClean(t, s)
}

// Many sandboxes commit at once on branches of their own, and race for one.
func TestConcurrentCommits(t *testing.T) {
	s := openStore(t, Options{})
	const sandboxes, rounds = 8, 6
	g, ctx := errgroup.WithContext(t.Context())
	tips := make([]Map, sandboxes)
	spaces := make([]*space, sandboxes)
	for i := range sandboxes {
		g.Go(func() error {
			r := testRand(t, uint64(i/2)) // pairs write the same contents
			sp := newSpace(2<<20, 4096)
			var m Map
			var tip Hash
			for range rounds {
				changed := sp.touch(r, 40)
				id, next, err := commitSpace(ctx, s, m, sp, changed, tip, fmt.Sprint("own-", i))
				if err != nil {
					return err
				}
				tip, m = id, next
				if err := race(ctx, s, id); err != nil {
					return err
				}
			}
			tips[i], spaces[i] = m, sp
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range sandboxes {
		wantSpace(t, s, tips[i], spaces[i])
	}
	log, err := s.Branches(t.Context())
	if err != nil || len(log) != sandboxes+1 {
		t.Errorf("got %d branches, %v, want %d", len(log), err, sandboxes+1)
	}
	head, err := s.Reflog(t.Context(), "raced")
	if err != nil || len(head) != sandboxes*rounds {
		t.Errorf("got %d reflog entries, %v, want %d: some were lost", len(head), err, sandboxes*rounds)
	}
	wantClean(t, s)
}

func commitSpace(ctx context.Context, s *Store, parent Map, sp *space, changed []int64, tip Hash, branch string) (Hash, Map, error) {
	w, err := s.NewWriter(ctx)
	if err != nil {
		return Hash{}, Map{}, err
	}
	defer w.Close()
	m, _, err := w.WriteMap(ctx, parent, sp.size, sp.pageBytes, sp.changes(changed))
	if err != nil {
		return Hash{}, Map{}, err
	}
	c := diskCommit(m)
	c.Message = branch
	if !tip.IsZero() {
		c.Parents = []Hash{tip}
	}
	id, err := w.Commit(ctx, c, Update{Refs: []RefUpdate{{Name: BranchRef(branch), Old: tip, New: Self}}})
	return id, m, err
}

// race moves one shared branch to id, trying again when another was faster.
func race(ctx context.Context, s *Store, id Hash) error {
	for {
		var old Hash
		if r, err := s.Ref(ctx, BranchRef("raced")); err == nil {
			old = r.Commit
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		err := s.Update(ctx, Update{
			Refs:  []RefUpdate{{Name: BranchRef("raced"), Old: old, New: id}},
			Heads: []HeadUpdate{{Sandbox: "raced", Head: Head{Branch: "raced"}, Commit: id, Reflog: []ReflogEntry{{Commit: id}}}},
		})
		if !errors.Is(err, ErrRefMoved) {
			return err
		}
	}
}

// A caller that breaks off gets its error, and the store is as before.
func TestWriteMapCanceled(t *testing.T) {
	s := openStore(t, Options{})
	sp := newSpace(16<<20, 4096)
	sp.touch(testRand(t, 1), 3000)
	errSource := errors.New("source failed")
	for _, tt := range []struct {
		name string
		want error
		run  func(w *Writer) error
	}{
		{"context", context.Canceled, func(w *Writer) error {
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			_, _, err := w.WriteMap(ctx, Map{}, sp.size, sp.pageBytes, func(yield func(Page, error) bool) {
				for p, err := range sp.all() {
					if n++; n == 700 {
						cancel()
					}
					if !yield(p, err) {
						return
					}
				}
			})
			cancel()
			return err
		}},
		{"source", errSource, func(w *Writer) error {
			_, _, err := w.WriteMap(t.Context(), Map{}, sp.size, sp.pageBytes, func(yield func(Page, error) bool) {
				for p := range sp.all() {
					if p.Index > 2000 {
						yield(Page{}, errSource)
						return
					}
					if !yield(p, nil) {
						return
					}
				}
			})
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWriter(t, s)
			if err := tt.run(w); !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if _, err := w.Commit(t.Context(), diskCommit(Map{}), Update{}); err == nil {
				t.Error("the writer goes on as if nothing had happened")
			}
			w.Close()
			w = newWriter(t, s)
			m, st := writeMap(t, w, Map{}, sp, sp.all())
			if st.PagesNew != int64(len(sp.pages)) && tt.name == "context" {
				t.Errorf("%d of %d pages are new: some of the broken write are taken for stored", st.PagesNew, len(sp.pages))
			}
			commit(t, w, diskCommit(m), Update{})
			wantSpace(t, s, m, sp)
		})
	}
	wantClean(t, s)
}

// Order, size and range of what a caller hands in are checked.
func TestWriteMapRefuses(t *testing.T) {
	s := openStore(t, Options{})
	page := fill(testRand(t, 1), 4096)
	pages := func(ps ...Page) iter.Seq2[Page, error] {
		return func(yield func(Page, error) bool) {
			for _, p := range ps {
				if !yield(p, nil) {
					return
				}
			}
		}
	}
	for _, tt := range []struct {
		name      string
		parent    Map
		size      int64
		pageBytes int
		pages     iter.Seq2[Page, error]
	}{
		{"descending", Map{}, 1 << 20, 4096, pages(Page{2, page}, Page{1, page})},
		{"twice", Map{}, 1 << 20, 4096, pages(Page{1, page}, Page{1, page})},
		{"negative", Map{}, 1 << 20, 4096, pages(Page{-1, page})},
		{"beyond the end", Map{}, 1 << 20, 4096, pages(Page{256, page})},
		{"short page", Map{}, 1 << 20, 4096, pages(Page{1, page[:100]})},
		{"page size", Map{}, 1 << 20, 1000, pages()},
		{"negative size", Map{}, -1, 4096, pages()},
		{"bytes behind the end", Map{}, 5000, 4096, pages(Page{1, append(make([]byte, 4095), 1)})},
		{"parent of another page size", Map{SizeBytes: 1 << 20, PageBytes: 16384}, 1 << 20, 4096, pages()},
		{"shrunk within a page", Map{SizeBytes: 1 << 20, PageBytes: 4096}, 5000, 4096, pages()},
		{"unknown parent", Map{Root: Hash{1}, SizeBytes: 1 << 20, PageBytes: 4096}, 1 << 20, 4096, pages()},
	} {
		w := newWriter(t, s)
		if _, _, err := w.WriteMap(t.Context(), tt.parent, tt.size, tt.pageBytes, tt.pages); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
		w.Close()
	}
	wantClean(t, s)
}

// Spaces grow and shrink, over leaves and levels, and come out as if they had
// been written from scratch.
func TestMapResized(t *testing.T) {
	r := testRand(t, 1)
	s := openStore(t, Options{})
	w := newWriter(t, s)
	sizes := []int64{1, 4096, 2 << 20, 2<<20 + 4096, 3 << 20, 1100 << 20, 1 << 30, 5 << 20, 4096, 0, 512, 600 << 20}
	sp := newSpace(sizes[0], 4096)
	m, _ := writeMap(t, w, Map{}, sp, sp.changes(sp.touch(r, 3)))
	for step := range 60 {
		old := sp.clone()
		size := sizes[r.IntN(len(sizes))]
		if size < sp.size {
			size &^= 4095
		}
		sp.size = size
		for i := range sp.pages {
			if i*4096 >= size {
				delete(sp.pages, i)
			}
		}
		var changed []int64
		if size > 0 {
			changed = sp.touch(r, r.IntN(6))
		}
		next, _ := writeMap(t, w, m, sp, sp.changes(changed))
		scratch, _ := writeMap(t, w, Map{}, sp, sp.all())
		if next != scratch {
			t.Fatalf("step %d: from %d to %d bytes: got %v, want %v", step, old.size, size, next, scratch)
		}
		flush(t, w)
		wantPages(t, s, next, sp)
		wantDiff(t, s, m, next, old, sp)
		m = next
	}
	wantClean(t, s)
}
