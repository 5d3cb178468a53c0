package branches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BRANCHES_TEST_HOLD"); dir != "" {
		holdStore(dir)
		return
	}
	if dir := os.Getenv("BRANCHES_TEST_KEEPER"); dir != "" {
		keepInHelper(dir)
		return
	}
	os.Exit(m.Run())
}

// holdStore is another process that has the store open until its stdin ends.
func holdStore(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin)
	if err := s.Close(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func startHolder(t *testing.T, dir string) (release func()) {
	t.Helper()
	cmd, in, lines := helper(t, "hold", "BRANCHES_TEST_HOLD="+dir)
	wantLine(t, lines, "open")
	return func() { in.Close(); cmd.Wait() }
}

func TestOneProcessAtATime(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	release := startHolder(t, dir)
	start := time.Now()
	_, err := Open(t.Context(), Options{Dir: dir, Wait: 50 * time.Millisecond})
	var le *LockError
	if !errors.As(err, &le) || !errors.Is(err, ErrLocked) || le.PID == 0 || !strings.HasSuffix(le.Command, " hold") {
		t.Fatalf("got %v, want the holder named", err)
	}
	if d := time.Since(start); d < 50*time.Millisecond {
		t.Errorf("gave up after %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, Options{Dir: dir, Wait: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		release()
	}()
	s, err := Open(t.Context(), Options{Dir: dir, Wait: time.Minute})
	if err != nil {
		t.Fatalf("after the holder let go: %v", err)
	}
	if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("twice in one process: got %v, want ErrLocked", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Branches(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// A store closed under a writer and a reader ends their calls with ErrClosed,
// and leaves neither goroutines nor descriptors.
func TestCloseLeavesNothing(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	warm := openStore(t, Options{Dir: dir})
	warm.Close()
	goroutines, files := goruntime.NumGoroutine(), openFiles(t)
	s := openStore(t, Options{Dir: dir})
	w := newWriter(t, s)
	sp := newSpace(1<<20, 4096)
	sp.touch(testRand(t, 1), 50)
	m, _ := writeMap(t, w, Map{}, sp, sp.all())
	flush(t, w)
	wantSpace(t, s, m, sp)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.WriteMap(t.Context(), m, sp.size, sp.pageBytes, sp.all()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	for _, err := range s.Pages(t.Context(), m) {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for goruntime.NumGoroutine() > goroutines && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // some of the index's end on a timer
	}
	if n := goruntime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", n, goroutines, buf[:goruntime.Stack(buf, true)])
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d open files, %d before", n, files)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(entries)
}

func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(dir string) error
		want  error
		text  string
	}{
		{"newer format", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "format"), []byte("sietch-store 99\n"), 0o600)
		}, ErrFormat, "version 99"},
		{"no format", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "format"), []byte("hello"), 0o600)
		}, ErrCorrupt, "format"},
		{"something else's directory", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "photo.jpg"), nil, 0o600)
		}, nil, "photo.jpg"},
		{"format file lost", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "packs"), 0o700), os.WriteFile(filepath.Join(dir, "packs", packName(1)), nil, 0o600))
		}, ErrCorrupt, "there are packs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := memoryDir(t)
			if err := tt.setup(dir); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), Options{Dir: dir})
			if err == nil {
				s.Close()
			}
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
	if _, err := Open(t.Context(), Options{}); err == nil {
		t.Error("opened no directory at all")
	}
}

// Creation that was cut short at any point is taken up again.
func TestInterruptedCreation(t *testing.T) {
	whole := filepath.Join(memoryDir(t), "store")
	openStore(t, Options{Dir: whole}).Close()
	for _, lost := range [][]string{{"format"}, {"format", "packs"}, {"format", "packs", "index"}, {"format", "index", "packs", "lock"}} {
		dir := filepath.Join(memoryDir(t), "store")
		copyStore(t, whole, dir)
		for _, name := range lost {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		s := openStore(t, Options{Dir: dir})
		wantClean(t, s)
		s.Close()
		if b, err := os.ReadFile(filepath.Join(dir, "format")); err != nil || string(b) != "sietch-store 1\n" {
			t.Errorf("without %v: format is %q, %v", lost, b, err)
		}
	}
}

// Hundreds of short commands do not make the index of the next one slow.
func TestManyShortCommands(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	var tip Hash
	most := 0
	for range 60 {
		s := openStore(t, Options{Dir: dir})
		h := newHistory(t, s)
		old := tip
		tip = commit(t, h.w, &Commit{Kind: KindDisk, Message: old.String()}, Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: old, New: Self}}})
		h.w.Close()
		most = max(most, len(s.index.db.Tables()))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if most > maxFreshTables+4 {
		t.Errorf("up to %d tables", most)
	}
	s := openStore(t, Options{Dir: dir})
	if n := mustUsage(t, s).Commits; n != 60 {
		t.Errorf("%d commits, want 60", n)
	}
	wantClean(t, s)
}

// An index that was lost is not taken for an empty one, and the packs stay.
func TestLostIndex(t *testing.T) {
	d := newDamaged(t)
	if err := d.s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "index")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Dir: d.dir}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "packs", packName(1))); err != nil {
		t.Error(err)
	}
}

// What a crash leaves in the packs is cut off, and nobody else can read what
// the store holds.
func TestOpenRepairs(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	s := openStore(t, Options{Dir: dir})
	w := newWriter(t, s)
	sp := newSpace(1<<20, 4096)
	sp.touch(testRand(t, 1), 50)
	m, _ := writeMap(t, w, Map{}, sp, sp.all())
	commit(t, w, diskCommit(m), Update{Refs: []RefUpdate{{Name: BranchRef("main"), New: Self}}})
	w.Close()
	s.Close()
	pack := filepath.Join(dir, "packs", packName(1))
	before, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pack, append(bytes.Clone(before), before[:1000]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "packs", packName(2)), before, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Options{Dir: dir})
	if after, err := os.ReadFile(pack); err != nil || !bytes.Equal(after, before) {
		t.Errorf("pack has %d bytes, %v, want the %d of before", len(after), err, len(before))
	}
	if _, err := os.Stat(filepath.Join(dir, "packs", packName(2))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pack the index does not know is still there: %v", err)
	}
	wantSpace(t, s, m, sp)
	// The pack is written on, not left behind small.
	w = newWriter(t, s)
	next, _ := writeMap(t, w, m, sp, sp.changes(sp.touch(testRand(t, 2), 5)))
	commit(t, w, diskCommit(next), Update{})
	if ids, _, err := s.packs.list(); err != nil || len(ids) != 1 {
		t.Errorf("packs %v, %v, want one", ids, err)
	}
	wantClean(t, s)
	for _, name := range []string{"", "packs", "index"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, %v, want 0700", name, info.Mode(), err)
		}
	}
	for _, name := range []string{"lock", "format", "packs/" + packName(1)} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v, want 0600", name, info.Mode(), err)
		}
	}
}

// A write that could fill the disk is refused before anything is done.
func TestNoSpaceIsSeenAhead(t *testing.T) {
	s := openStore(t, Options{})
	real := s.free
	w := newWriter(t, s)
	sp := newSpace(8<<20, 4096)
	sp.touch(testRand(t, 1), 1500)
	s.free = func(string) (int64, error) { return indexSlackBytes, nil }
	_, _, err := w.WriteMap(t.Context(), Map{}, sp.size, sp.pageBytes, sp.all())
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v, want ErrNoSpace and ENOSPC", err)
	}
	if _, _, err := w.WriteMap(t.Context(), Map{}, sp.size, sp.pageBytes, sp.all()); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a writer goes on after an error: %v", err)
	}
	w.Close()
	s.free = func(string) (int64, error) { return 1 << 20, nil }
	if err := s.Update(t.Context(), Update{Refs: []RefUpdate{{Name: BranchRef("x"), New: Hash{1}}}}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
	s.free = real
	w = newWriter(t, s)
	m, _ := writeMap(t, w, Map{}, sp, sp.all())
	commit(t, w, diskCommit(m), Update{})
	wantSpace(t, s, m, sp)
	wantClean(t, s)
}

// A real file system of 64 MiB is filled to the brim. Every error is a clean
// one, the store can be read and collected all the same, and works once there
// is room.
func TestFullDisk(t *testing.T) {
	testlane.Need(t, testlane.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("mount a file system: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	dir := filepath.Join(mount, "store")
	s := openStore(t, Options{Dir: dir})
	r := testRand(t, 1)
	sp := newSpace(32<<20, 4096)
	tip, m := Hash{}, Map{}
	add := func() error {
		w, err := s.NewWriter(t.Context())
		if err != nil {
			return err
		}
		defer w.Close()
		next := sp.clone()
		nm, _, err := w.WriteMap(t.Context(), m, next.size, next.pageBytes, next.changes(next.touch(r, 1500)))
		if err != nil {
			return err
		}
		c := diskCommit(nm)
		if !tip.IsZero() {
			c.Parents = []Hash{tip}
		}
		id, err := w.Commit(t.Context(), c, Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: tip, New: Self}}})
		if err == nil {
			tip, m, sp = id, nm, next
		}
		return err
	}
	var err error
	made := 0
	for ; err == nil && made < 100; made++ {
		err = add()
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("after %d commits: got %v, want ErrNoSpace", made, err)
	}
	wantClean(t, s)
	// Somebody else takes the rest, to the last block.
	filler := filepath.Join(mount, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, n := range []int{1 << 20, 4096} {
			buf := make([]byte, n)
			for err == nil {
				_, err = f.Write(buf)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			err = nil
		}
	}
	fill()
	if err := add(); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("on a full disk: got %v, want ErrNoSpace", err)
	}
	wantSpace(t, s, m, sp)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fill()
	s = openStore(t, Options{Dir: dir}) // on its reserve
	wantSpace(t, s, m, sp)
	wantClean(t, s)
	if err := add(); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("on a full disk: got %v, want ErrNoSpace", err)
	}
	// Making room needs no room.
	before := packsSize(t, s)
	s.free = freeBytes
	root, err := s.Log(t.Context(), []Hash{tip}, 0)
	if err != nil {
		t.Fatal(err)
	}
	oldest := root[len(root)-1].ID
	p, err := s.PlanGC(t.Context(), GCOptions{ExtraRoots: []Hash{oldest}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Execute(t.Context()); err != nil {
		t.Errorf("gc on a full disk: %v", err)
	}
	wantClean(t, s)
	os.Remove(filler)
	if err := add(); err != nil && !errors.Is(err, ErrNoSpace) {
		t.Errorf("after space was freed: %v", err)
	}
	w := newHistory(t, s)
	w.ids["tip"] = tip
	if err := s.Update(t.Context(), Update{Refs: []RefUpdate{{Name: BranchRef("main"), Force: true, New: oldest}}}); err != nil {
		t.Fatal(err)
	}
	w.w.Close()
	collect(t, s, GCOptions{})
	if after := packsSize(t, s); after > before/2 {
		t.Errorf("packs have %d bytes after gc, %d before", after, before)
	}
	c, err := s.Commit(t.Context(), oldest)
	if err != nil {
		t.Fatal(err)
	}
	tip, m = oldest, c.Disk
	sp = newSpace(32<<20, 4096)
	for pg, err := range s.Pages(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		sp.pages[pg.Index] = bytes.Clone(pg.Data)
	}
	if err := add(); err != nil {
		t.Errorf("after gc: %v", err)
	}
	wantSpace(t, s, m, sp)
	wantClean(t, s)
}

// What Badger warns of is detail; its errors are not.
func TestBadgerWarningsAreDetail(t *testing.T) {
	var buf bytes.Buffer
	l := &badgerLog{log: slog.New(slog.NewTextHandler(&buf, nil))}
	l.Warningf("While running doCompact: %v\n", "Unable to fill tables")
	if buf.Len() > 0 {
		t.Errorf("logged %s", buf.String())
	}
	l.Errorf("Ignoring table %d", 1)
	if !strings.Contains(buf.String(), "Ignoring table 1") || l.ignored.Load() == nil {
		t.Errorf("logged %q, ignored %v", buf.String(), l.ignored.Load())
	}
}

// A process that is killed while it opens a store may leave logs that have a name
// and nothing else.
func TestKilledWhileOpening(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	s := openStore(t, Options{Dir: dir})
	h := newHistory(t, s)
	commit(t, h.w, &Commit{Kind: KindDisk}, Update{Refs: []RefUpdate{{Name: BranchRef("main"), New: Self}}})
	h.w.Close()
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"000042.vlog", "00007.mem", "00001.mem"} {
			f, err := os.OpenFile(filepath.Join(dir, "index", name), os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		s = openStore(t, Options{Dir: dir})
		if n := mustUsage(t, s).Commits; n != 1 {
			t.Errorf("%d commits, want 1", n)
		}
	}
	wantClean(t, s)
}
