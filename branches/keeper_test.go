package branches

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// keeperOf makes a keeper of a new store, or of the one in o.Store.Dir.
func keeperOf(t *testing.T, o KeeperOptions) *Keeper {
	t.Helper()
	if o.Store.Dir == "" {
		o.Store.Dir = filepath.Join(memoryDir(t), "store")
	}
	if o.Store.Wait == 0 {
		o.Store.Wait = time.Minute
	}
	s := openStore(t, Options{Dir: o.Store.Dir}) // so that what comes writes nothing by itself
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	k := NewKeeper(o)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return k
}

// use is Use for its store.
func use(t *testing.T, k *Keeper) (s *Store) {
	t.Helper()
	err := k.Use(t.Context(), func(open *Store) error {
		s = open
		_, err := open.Branches(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addBranch makes a commit and a branch that leads to it.
func addBranch(ctx context.Context, s *Store, name string) error {
	w, err := s.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Close()
	_, err = w.Commit(ctx, &Commit{Kind: KindDisk, Message: name, Created: time.Unix(1700000000, 0)},
		Update{Refs: []RefUpdate{{Name: BranchRef(name), New: Self}}})
	return err
}

// takeable fails unless somebody else can have the store right now.
func takeable(t *testing.T, k *Keeper, want bool) {
	t.Helper()
	if got := isFree(t, k); got != want {
		t.Errorf("somebody else can have the store: %v, want %v", got, want)
	}
}

func isFree(t *testing.T, k *Keeper) bool {
	t.Helper()
	o := k.store
	o.Wait = 0
	s, err := Open(t.Context(), o)
	if errors.Is(err, ErrLocked) {
		return false
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Error(err)
	}
	return true
}

// within waits for something that happens by itself.
func within(t *testing.T, what string, d time.Duration, fn func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !fn(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

func isClosed(s *Store) bool {
	s.life.Lock()
	defer s.life.Unlock()
	return s.life.closed
}

func TestKeeperKeepsTheStore(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: 300 * time.Millisecond})
	s := use(t, k)
	if use(t, k) != s {
		t.Error("the store was opened anew")
	}
	takeable(t, k, false)
	within(t, "an idle store is closed", 20*time.Second, func() bool { return isClosed(s) && isFree(t, k) })
	if use(t, k) == s {
		t.Error("a closed store was handed out")
	}
}

// What was written is put where it belongs while nobody waits for it.
func TestKeeperSettles(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	written := use(t, k)
	if err := k.Use(t.Context(), func(s *Store) error { return addBranch(t.Context(), s, "one") }); err != nil {
		t.Fatal(err)
	}
	within(t, "the store is opened anew", 20*time.Second, func() bool { return isClosed(written) })
	s := use(t, k)
	if s == written {
		t.Fatal("a closed store was handed out")
	}
	takeable(t, k, false)
	time.Sleep(2 * guardSettles)
	if use(t, k) != s {
		t.Error("a store that was only read is opened anew")
	}
	if _, err := s.Ref(t.Context(), BranchRef("one")); err != nil {
		t.Error(err)
	}
}

func TestKeeperThatKeepsNothing(t *testing.T) {
	k := keeperOf(t, KeeperOptions{})
	s := use(t, k)
	takeable(t, k, true)
	if !isClosed(s) || use(t, k) == s {
		t.Error("the store stayed open")
	}
	if _, err := os.Stat(filepath.Join(k.store.Dir, wantedName)); err == nil {
		t.Error("who does not keep it looks for those who wait")
	}
}

// What must not leave a store behind that others rely on.
func TestKeeperClosesAfterTrouble(t *testing.T) {
	full := func(string) (int64, error) { return indexSlackBytes - 1, nil }
	trouble := errors.New("trouble")
	for _, tt := range []struct {
		name string
		fn   func(s *Store) error
		want error
	}{
		{"error", func(*Store) error { return trouble }, trouble},
		{"little room", func(s *Store) error { s.free = full; return nil }, nil},
		{"no room to merge", func(s *Store) error { s.index.opts.roomy = false; return nil }, nil},
		{"panic", func(*Store) error { panic(trouble) }, trouble},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := keeperOf(t, KeeperOptions{Idle: time.Hour})
			use(t, k)
			err := func() (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = p.(error)
					}
				}()
				return k.Use(t.Context(), tt.fn)
			}()
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			takeable(t, k, true)
			use(t, k)
			takeable(t, k, false)
		})
	}
}

// A disk that somebody else fills is no place to stay on.
func TestKeeperLeavesADiskThatFills(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	var free atomic.Int64
	free.Store(1 << 40)
	var s *Store
	if err := k.Use(t.Context(), func(open *Store) error {
		s, open.free = open, func(string) (int64, error) { return free.Load(), nil }
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	takeable(t, k, false)
	use(t, k)
	free.Store(1 << 20)
	within(t, "the store is closed", 20*time.Second, func() bool { return isClosed(s) && isFree(t, k) })
}

// The same on a real file system, filled to the brim behind an open store whose
// memtable is not written out yet.
func TestKeeperOnAFullDisk(t *testing.T) {
	testlane.Need(t, testlane.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=96m"); err != nil {
		t.Skipf("mount a file system: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	k := keeperOf(t, KeeperOptions{Idle: time.Hour, Store: Options{Dir: filepath.Join(mount, "store")}})
	add := func(name string) error {
		return k.Use(t.Context(), func(s *Store) error { return addBranch(t.Context(), s, name) })
	}
	if err := add("one"); err != nil {
		t.Fatal(err)
	}
	s := use(t, k)
	if err := add("two"); err != nil {
		t.Fatal(err)
	}
	takeable(t, k, false)
	// While it is used, so that its guard does not get to see it coming.
	if err := k.Use(t.Context(), func(*Store) error {
		f, err := os.Create(filepath.Join(mount, "filler"))
		if err != nil {
			return err
		}
		for _, n := range []int{1 << 20, 4096} {
			for buf := make([]byte, n); err == nil; {
				_, err = f.Write(buf)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				return err
			}
			err = nil
		}
		return f.Close()
	}); err != nil {
		t.Fatal(err)
	}
	if !isClosed(s) {
		t.Error("the store stays open on a full disk")
	}
	if err := add("three"); !errors.Is(err, ErrNoSpace) {
		t.Errorf("on a full disk: got %v, want ErrNoSpace", err)
	}
	if err := os.Remove(filepath.Join(mount, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := add("three"); err != nil {
		t.Fatal(err)
	}
	if err := k.Use(t.Context(), func(s *Store) error {
		wantClean(t, s)
		if list, err := s.Branches(t.Context()); err != nil || len(list) != 3 {
			t.Errorf("%d branches, %v", len(list), err)
		}
		info, err := os.Stat(filepath.Join(mount, "store", reserveName))
		if err != nil || info.Size() < reserveBytes {
			t.Errorf("the reserve is not whole again: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A directory that was put in the place of the store's is another store.
func TestKeeperLetsGoOfAMovedDirectory(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	dir := k.store.Dir
	old := use(t, k)
	if err := k.Use(t.Context(), func(s *Store) error { return addBranch(t.Context(), s, "old") }); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	other := openStore(t, Options{Dir: dir})
	within(t, "the store is let go of", 20*time.Second, func() bool { return isClosed(old) })
	if err := addBranch(t.Context(), other, "new"); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Store{"new": use(t, k), "old": openStore(t, Options{Dir: dir + ".old"})} {
		wantClean(t, s)
		list, err := s.Branches(t.Context())
		if err != nil || len(list) != 1 || list[0].Name != BranchRef(name) {
			t.Errorf("store %s has %v, %v", name, list, err)
		}
	}
}

// One call at a time, in the order of their coming, and none waits for longer
// than it was told to.
func TestKeeperTakesTurns(t *testing.T) {
	for _, idle := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprint("idle ", idle), func(t *testing.T) {
			k := keeperOf(t, KeeperOptions{Idle: idle, Store: Options{Wait: 20 * time.Millisecond}})
			err := k.Use(t.Context(), func(*Store) error {
				var le *LockError
				err := k.Use(t.Context(), func(*Store) error { t.Error("two at a time"); return nil })
				if !errors.As(err, &le) || le.PID != os.Getpid() {
					t.Errorf("got %v, want a LockError that names this process", err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				k.store.Wait = time.Minute
				if err := k.Use(ctx, func(*Store) error { return nil }); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want the context's error", err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var inside atomic.Int32
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					err := k.Use(t.Context(), func(*Store) error {
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d at a time", n)
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
}

// helper starts this test binary as another process that does something, which env
// tells it, with a store, and returns what it prints, line by line.
func helper(t *testing.T, what, env string) (cmd *exec.Cmd, in io.WriteCloser, lines *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(os.Args[0], what)
	cmd.Env = append(os.Environ(), env)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	return cmd, in, bufio.NewScanner(out)
}

func wantLine(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	if !lines.Scan() || lines.Text() != want {
		t.Fatalf("the other process says %q, want %q", lines.Text(), want)
	}
}

// keepInHelper is the other process.
func keepInHelper(dir string) {
	ctx := context.Background()
	switch os.Args[1] {
	case "take": // the store at each line of stdin
		fmt.Println("ready")
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			s, err := Open(ctx, Options{Dir: dir, Wait: time.Minute})
			if err == nil {
				err = s.Close()
			}
			fmt.Println("took", err)
		}
	case "keep": // it, with a commit in its memtable
		k := NewKeeper(KeeperOptions{Idle: time.Hour, Store: Options{Dir: dir}})
		fmt.Println("kept", k.Use(ctx, func(s *Store) error { return addBranch(ctx, s, "kept") }))
		io.Copy(io.Discard, os.Stdin)
	}
}

// Another process has an idle store within less than anybody notices, though it
// would be kept for an hour.
func TestKeeperGivesAnIdleStoreAway(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	_, in, lines := helper(t, "take", "BRANCHES_TEST_KEEPER="+k.store.Dir)
	wantLine(t, lines, "ready")
	for i := range 10 {
		if err := k.Use(t.Context(), func(s *Store) error { return addBranch(t.Context(), s, fmt.Sprint("b", i)) }); err != nil {
			t.Fatal(err)
		}
		takeable(t, k, false)
		began := time.Now()
		fmt.Fprintln(in)
		wantLine(t, lines, "took <nil>")
		d := time.Since(began)
		if d > 10*time.Second { // a machine may be very busy
			t.Errorf("it took %v", d)
		}
		t.Logf("taken after %v", d.Round(100*time.Microsecond))
	}
}

// And a busy one before the next call, however many wait in this process.
func TestKeeperGivesABusyStoreAway(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	_, in, lines := helper(t, "take", "BRANCHES_TEST_KEEPER="+k.store.Dir)
	wantLine(t, lines, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var calls atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				err := k.Use(ctx, func(s *Store) error {
					calls.Add(1)
					time.Sleep(5 * time.Millisecond)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		before := calls.Load()
		within(t, "calls of this process", 20*time.Second, func() bool { return calls.Load() > before+4 })
		before = calls.Load()
		fmt.Fprintln(in)
		wantLine(t, lines, "took <nil>")
		// One is under way, one may come in between before the wait is announced.
		// On a machine that does not let the other run, some more.
		if n := calls.Load() - before; n > 40 {
			t.Errorf("%d calls were first", n)
		} else {
			t.Logf("%d calls were first", n)
		}
	}
}

// Who keeps a store may be killed.
func TestKilledWithAKeptStore(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	cmd, _, lines := helper(t, "keep", "BRANCHES_TEST_KEEPER="+dir)
	wantLine(t, lines, "kept <nil>")
	_, err := Open(t.Context(), Options{Dir: dir})
	var le *LockError
	if !errors.As(err, &le) || le.PID != cmd.Process.Pid {
		t.Fatalf("got %v, want a LockError that names the keeper", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	s := openStore(t, Options{Dir: dir})
	if _, err := s.Ref(t.Context(), BranchRef("kept")); err != nil {
		t.Error(err)
	}
	wantClean(t, s)
}

// A process that is killed while it waits is waited for by nobody.
func TestKilledWhileItWaits(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	cmd, in, lines := helper(t, "take", "BRANCHES_TEST_KEEPER="+k.store.Dir)
	wantLine(t, lines, "ready")
	var s *Store
	err := k.Use(t.Context(), func(open *Store) error {
		s = open
		fmt.Fprintln(in)
		w, err := watchWaiters(open.dir)
		if err != nil {
			return err
		}
		defer w.close()
		waits := func() bool { any, err := w.any(); return err == nil && any }
		within(t, "the other process says that it waits", 20*time.Second, waits)
		cmd.Process.Kill()
		cmd.Wait()
		if waits() {
			t.Error("a dead process waits")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if use(t, k) != s {
		t.Error("the store was closed for nobody")
	}
}

func TestKeeperCloseLeavesNothing(t *testing.T) {
	k := keeperOf(t, KeeperOptions{Idle: time.Hour})
	k.Close()
	goroutines, files := goruntime.NumGoroutine(), openFiles(t)
	k = keeperOf(t, KeeperOptions{Idle: time.Hour})
	s := use(t, k)
	use(t, k)
	if err := errors.Join(k.Close(), k.Close()); err != nil {
		t.Fatal(err)
	}
	if !isClosed(s) {
		t.Error("the store is still open")
	}
	for end := time.Now().Add(10 * time.Second); goruntime.NumGoroutine() > goroutines && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // some of the index's end on a timer
	}
	if n := goruntime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", n, goroutines, buf[:goruntime.Stack(buf, true)])
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d open files, %d before", n, files)
	}
	if use(t, k); !isClosed(use(t, k)) {
		t.Error("a keeper that was closed keeps the store")
	}
}
