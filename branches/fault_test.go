package branches

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// faultFS counts everything the store does to its files and to its index, and
// lets a test step in before or after any of it.
type faultFS struct {
	osFS
	mu     sync.Mutex
	count  int
	on     func(op string, k int) error // before the k-th operation, from 1
	torn   bool                         // a failing write leaves its first half
	synced map[string]int64             // durable length by name
	names  map[string]bool              // files whose names are durable
	fresh  map[string]bool              // files created since the directory was synced
}

func newFaultFS() *faultFS {
	return &faultFS{synced: map[string]int64{}, names: map[string]bool{}, fresh: map[string]bool{}}
}

func (f *faultFS) step(op string) error {
	f.mu.Lock()
	f.count++
	k, on := f.count, f.on
	f.mu.Unlock()
	if on == nil {
		return nil
	}
	return on(op, k)
}

func (f *faultFS) options(dir string) Options {
	return Options{Dir: dir, Now: newClock().now, fs: f, faults: &faults{
		before: func(step string) error { return f.step("before " + step) },
		done:   func(step string) error { return f.step("after " + step) },
	}}
}

func (f *faultFS) open(name string) (file, error) {
	in, err := f.osFS.open(name)
	if err != nil {
		return nil, err
	}
	return &faultFile{file: in, fs: f, name: name}, nil
}

func (f *faultFS) create(name string) (file, error) {
	if err := f.step("create"); err != nil {
		return nil, err
	}
	in, err := f.osFS.create(name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.fresh[name], f.synced[name] = true, 0
	f.mu.Unlock()
	return &faultFile{file: in, fs: f, name: name}, nil
}

func (f *faultFS) remove(name string) error {
	if err := f.step("remove"); err != nil {
		return err
	}
	return f.osFS.remove(name)
}

func (f *faultFS) syncDir(name string) error {
	if err := f.step("sync directory"); err != nil {
		return err
	}
	f.mu.Lock()
	for n := range f.fresh {
		if filepath.Dir(n) == name {
			f.names[n] = true
			delete(f.fresh, n)
		}
	}
	f.mu.Unlock()
	return f.osFS.syncDir(name)
}

type faultFile struct {
	file
	fs   *faultFS
	name string
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.step("write"); err != nil {
		if f.fs.torn {
			n, _ := f.file.WriteAt(p[:len(p)/2], off)
			return n, err
		}
		return 0, err
	}
	return f.file.WriteAt(p, off)
}

func (f *faultFile) Sync() error {
	if err := f.fs.step("sync"); err != nil {
		return err
	}
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	f.fs.mu.Lock()
	f.fs.synced[f.name] = info.Size()
	f.fs.mu.Unlock()
	return f.file.Sync()
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.step("truncate"); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

// scenario is a short life of a store that goes through every kind of write:
// commits on two branches, a tag, a deleted branch, gc with pages to move and
// packs to drop, and commits that bring collected contents back.
type scenario struct {
	t      testing.TB
	s      *Store
	spaces map[Hash]*space // what every commit made holds
	refs   map[RefName]Hash
}

type scenarioStep struct {
	name string
	run  func(sc *scenario) error
}

func (sc *scenario) commitOn(branch string, parent RefName, change func(sp *space) []int64, force bool) error {
	t, s := sc.t, sc.s
	w, err := s.NewWriter(t.Context())
	if err != nil {
		return err
	}
	defer w.Close()
	sp, base, parents := newSpace(700<<10, 1024), Map{}, []Hash(nil)
	if p, ok := sc.refs[parent]; ok {
		c, err := s.Commit(t.Context(), p)
		if err != nil {
			return err
		}
		sp, base, parents = sc.spaces[p].clone(), *c.Memory, []Hash{p}
	}
	changed := change(sp)
	m, _, err := w.WriteMap(t.Context(), base, sp.size, sp.pageBytes, sp.changes(changed))
	if err != nil {
		return err
	}
	blob, _, err := w.WriteBlob(t.Context(), []byte("devices of "+branch))
	if err != nil {
		return err
	}
	c := &Commit{Kind: KindFull, Memory: &m, Devices: blob, Parents: parents, Branch: branch, Message: fmt.Sprint(len(sc.spaces))}
	name := BranchRef(branch)
	id, err := w.Commit(t.Context(), c, Update{
		Refs: []RefUpdate{{Name: name, Old: sc.refs[name], New: Self, Force: force}},
		Heads: []HeadUpdate{{Sandbox: "id-" + branch, Head: Head{Branch: branch}, Commit: Self,
			Reflog: []ReflogEntry{{Commit: Self, Action: "commit"}}}},
	})
	if err != nil {
		return err
	}
	sc.spaces[id], sc.refs[name] = sp, id
	return nil
}

// some returns a change of n pages whose contents depend on seed alone.
func some(seed uint64, n int) func(sp *space) []int64 {
	return func(sp *space) []int64 {
		r := testRand(noTB{}, seed)
		return sp.touch(r, n)
	}
}

type noTB struct{ testing.TB }

func (noTB) Helper() {}

func scenarioSteps() []scenarioStep {
	collect := func(sc *scenario) error {
		p, err := sc.s.PlanGC(sc.t.Context(), GCOptions{})
		if err != nil {
			return err
		}
		_, err = p.Execute(sc.t.Context())
		return err
	}
	drop := func(branch string) func(sc *scenario) error {
		return func(sc *scenario) error {
			name := BranchRef(branch)
			if sc.refs[name].IsZero() {
				return nil // a first try did it and reported an error all the same
			}
			err := sc.s.Update(sc.t.Context(), Update{
				Refs:  []RefUpdate{{Name: name, Old: sc.refs[name]}},
				Heads: []HeadUpdate{{Sandbox: "id-" + branch, Delete: true}},
			})
			if err == nil {
				delete(sc.refs, name)
			}
			return err
		}
	}
	return []scenarioStep{
		{"first commit", func(sc *scenario) error { return sc.commitOn("main", "", some(1, 300), true) }},
		{"second commit", func(sc *scenario) error { return sc.commitOn("main", BranchRef("main"), some(2, 40), true) }},
		{"tag", func(sc *scenario) error {
			id := sc.refs[BranchRef("main")]
			err := sc.s.Update(sc.t.Context(), Update{Refs: []RefUpdate{{Name: TagRef("v1"), New: id, Force: true}}})
			if err == nil {
				sc.refs[TagRef("v1")] = id
			}
			return err
		}},
		{"side branch", func(sc *scenario) error { return sc.commitOn("side", BranchRef("main"), some(3, 200), true) }},
		{"side branch again", func(sc *scenario) error { return sc.commitOn("side", BranchRef("side"), some(4, 200), true) }},
		{"third commit", func(sc *scenario) error { return sc.commitOn("main", BranchRef("main"), some(5, 20), true) }},
		{"drop side branch", drop("side")},
		{"collect", collect},
		{"what was collected comes back", func(sc *scenario) error { return sc.commitOn("back", BranchRef("main"), some(3, 200), true) }},
		{"drop all but main", drop("back")},
		{"collect again", collect},
		{"last commit", func(sc *scenario) error { return sc.commitOn("main", BranchRef("main"), some(4, 50), true) }},
	}
}

func newScenario(t testing.TB, s *Store) *scenario {
	return &scenario{t: t, s: s, spaces: map[Hash]*space{}, refs: map[RefName]Hash{}}
}

func (sc *scenario) clone() *scenario {
	c := newScenario(sc.t, sc.s)
	for k, v := range sc.spaces {
		c.spaces[k] = v
	}
	for k, v := range sc.refs {
		c.refs[k] = v
	}
	return c
}

// check holds a store against what must be in it: refs are those of one of the
// given states, everything reachable is whole, and fsck has nothing to say.
func check(t *testing.T, s *Store, states ...*scenario) {
	t.Helper()
	have := map[RefName]Hash{}
	for _, list := range []func() ([]Ref, error){
		func() ([]Ref, error) { return s.Branches(t.Context()) },
		func() ([]Ref, error) { return s.Tags(t.Context()) },
	} {
		refs, err := list()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range refs {
			have[r.Name] = r.Commit
		}
	}
	var spaces map[Hash]*space
	for _, sc := range states {
		if fmt.Sprint(sc.refs) == fmt.Sprint(have) {
			spaces = sc.spaces
		}
	}
	if spaces == nil {
		t.Errorf("refs are %v, of no state the store was in", have)
		return
	}
	seen := map[Hash]bool{}
	for _, tip := range have {
		log, err := s.Log(t.Context(), []Hash{tip}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range log {
			if seen[c.ID] {
				continue
			}
			seen[c.ID] = true
			wantSpace(t, s, *c.Memory, spaces[c.ID])
			if _, err := s.Blob(t.Context(), c.Devices); err != nil {
				t.Error(err)
			}
		}
	}
	wantClean(t, s)
}

// listSteps runs the scenario undisturbed and returns the operations it takes.
func listSteps(t *testing.T) (ops []string) {
	f := newFaultFS()
	f.on = func(op string, k int) error {
		ops = append(ops, op)
		return nil
	}
	s := openStore(t, f.options(filepath.Join(memoryDir(t), "store")))
	sc := newScenario(t, s)
	for _, st := range scenarioSteps() {
		if err := st.run(sc); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
	}
	check(t, s, sc)
	if len(sc.refs) != 2 {
		t.Fatalf("the scenario ends with refs %v", sc.refs)
	}
	return slices.Clone(ops) // those of Close come later
}

var errInjected = errors.New("injected fault")

// Every operation in turn fails, writes also halfway on a full disk. The call
// reports it, nothing is half there, and the store works on.
func TestFailingWrites(t *testing.T) {
	full := fmt.Errorf("%w: %w", errInjected, syscall.ENOSPC)
	for i, op := range listSteps(t) {
		if testing.Short() && i%4 != 0 {
			continue
		}
		failAt(t, i+1, false, errInjected)
		if op == "write" {
			failAt(t, i+1, true, full)
		}
	}
}

func failAt(t *testing.T, k int, torn bool, fault error) {
	t.Helper()
	base := memoryDir(t)
	defer os.RemoveAll(base)
	dir := filepath.Join(base, "store")
	f := newFaultFS()
	f.torn = torn
	where := ""
	f.on = func(op string, n int) error {
		if n == k {
			where = fmt.Sprintf("operation %d, %s", k, op)
			return fault
		}
		return nil
	}
	s, err := Open(t.Context(), f.options(dir))
	if err != nil {
		if !errors.Is(err, errInjected) {
			t.Fatalf("%s: open: %v", where, err)
		}
		s, err = Open(t.Context(), f.options(dir))
		if err != nil {
			t.Fatalf("%s: open again: %v", where, err)
		}
	}
	sc := newScenario(t, s)
	for _, st := range scenarioSteps() {
		before := sc.clone()
		err := st.run(sc)
		if err == nil {
			continue
		}
		if !errors.Is(err, errInjected) {
			t.Fatalf("%s: %s: %v", where, st.name, err)
		}
		check(t, s, before, sc, maybeDone(before, s))
		// A step that failed after it was done has been done.
		*sc = *maybeDone(before, s)
		if err := st.run(sc); err != nil && !isRepeat(err) {
			t.Fatalf("%s: %s, tried again: %v", where, st.name, err)
		}
	}
	check(t, s, sc)
	if err := s.Close(); err != nil {
		t.Fatalf("%s: close: %v", where, err)
	}
	s, err = Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatalf("%s: reopen: %v", where, err)
	}
	check(t, s, sc)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		t.Fatalf("%s: see above", where)
	}
}

// isRepeat reports errors that only say the step was done the first time.
func isRepeat(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefMoved) }

// maybeDone is the state after a step that reported an error although its
// transaction went through: what the refs say, with contents filled in.
func maybeDone(before *scenario, s *Store) *scenario {
	sc := before.clone()
	clear(sc.refs)
	for _, prefix := range []string{branchPrefix, tagPrefix} {
		refs, err := s.refs(prefix)
		if err != nil {
			sc.t.Fatal(err)
		}
		for _, r := range refs {
			if _, ok := sc.spaces[r.Commit]; !ok {
				sp := readSpace(sc.t, s, r.Commit)
				sc.spaces[r.Commit] = sp
			}
			sc.refs[r.Name] = r.Commit
		}
	}
	return sc
}

func readSpace(t testing.TB, s *Store, id Hash) *space {
	c, err := s.Commit(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	sp := newSpace(c.Memory.SizeBytes, c.Memory.PageBytes)
	for p, err := range s.Pages(t.Context(), *c.Memory) {
		if err != nil {
			t.Fatal(err)
		}
		sp.pages[p.Index] = bytes.Clone(p.Data)
	}
	return sp
}

// The process ends at every write in turn: what is on disk then is opened
// again. Once as a kill leaves it, and once as a power cut does, that takes
// from the packs whatever was not synced.
func TestCrashes(t *testing.T) {
	base := memoryDir(t)
	dir := filepath.Join(base, "store")
	f := newFaultFS()
	type crash struct {
		at     string
		dir    string
		before *scenario
	}
	var crashes []crash
	var sc *scenario
	step := "open"
	f.on = func(op string, k int) error {
		if sc == nil {
			return nil // creation is TestInterruptedCreation's
		}
		variants := []bool{false}
		if f.unsynced() {
			variants = append(variants, true)
		}
		for _, power := range variants {
			c := crash{at: fmt.Sprintf("%s, operation %d, before %s, power cut %v", step, k, op, power), dir: filepath.Join(base, fmt.Sprintf("crash-%d-%v", k, power)), before: sc.clone()}
			copyStore(t, dir, c.dir)
			if power {
				f.cutPower(t, dir, c.dir)
			}
			crashes = append(crashes, c)
		}
		return nil
	}
	s := openStore(t, f.options(dir))
	sc = newScenario(t, s)
	after := map[int]*scenario{}
	for _, st := range scenarioSteps() {
		step = st.name
		n := len(crashes)
		if err := st.run(sc); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		for ; n < len(crashes); n++ {
			after[n] = sc.clone()
		}
	}
	for n, c := range crashes {
		s, err := Open(t.Context(), Options{Dir: c.dir})
		if err != nil {
			t.Fatalf("%s: open: %v", c.at, err)
		}
		check(t, s, c.before, after[n])
		if n%4 != 0 {
			closeCrashed(t, s, c.at, c.dir)
			continue
		}
		// And it goes on: a commit, and gc of what the crash left.
		again := newScenario(t, s)
		if err := again.commitOn("after-crash", "", some(9, 30), false); err != nil {
			t.Fatalf("%s: commit: %v", c.at, err)
		}
		p, err := s.PlanGC(t.Context(), GCOptions{})
		if err != nil {
			t.Fatalf("%s: gc: %v", c.at, err)
		}
		if _, err := p.Execute(t.Context()); err != nil {
			t.Fatalf("%s: gc: %v", c.at, err)
		}
		wantClean(t, s)
		closeCrashed(t, s, c.at, c.dir)
	}
	t.Logf("%d crashes", len(crashes))
}

func closeCrashed(t *testing.T, s *Store, at, dir string) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if t.Failed() {
		t.Fatalf("%s: see above", at)
	}
	os.RemoveAll(dir)
}

// unsynced reports whether a power cut would take anything.
func (f *faultFS) unsynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, size := range f.synced {
		if info, err := os.Stat(name); err == nil && (info.Size() > size || !f.names[name]) {
			return true
		}
	}
	return false
}

// cutPower takes from a copy of the store what was not durable.
func (f *faultFS) cutPower(t testing.TB, from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, size := range f.synced {
		rel, err := filepath.Rel(from, name)
		if err != nil {
			t.Fatal(err)
		}
		lost := filepath.Join(to, rel)
		if _, err := os.Stat(lost); err != nil {
			continue
		}
		if !f.names[name] {
			err = os.Remove(lost)
		} else {
			err = os.Truncate(lost, size)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// copyStore copies a store's files as they are at this instant, memory-mapped
// ones included, holes as holes.
func copyStore(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		in, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(target)
		if err != nil {
			return err
		}
		defer out.Close()
		return copySparse(in, out)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func copySparse(in, out *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for off := int64(0); ; {
		start, err := in.Seek(off, 3) // SEEK_DATA
		if errors.Is(err, syscall.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := in.Seek(start, 4) // SEEK_HOLE
		if err != nil {
			return err
		}
		if _, err := in.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, end-start); err != nil {
			return err
		}
		off = end
	}
}
