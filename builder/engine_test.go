package builder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestEngineLeavesWhenIdle(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	b := newBuilder(t, func(o *Options) { o.EngineIdle = 300 * time.Millisecond })
	dir := tree(t, map[string]string{"f": "f", "Dockerfile": "FROM scratch\nCOPY f /"})
	first, _ := build(t, b, BuildRequest{ContextDir: dir})
	waitFor(t, 20*time.Second, "the engine to leave", func() bool { return len(engines(b.opts.Dir)) == 0 })
	left, err := mountsBelow(b.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(engineDir(b.opts.Dir), engineSocket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	// Another engine finds the cache and what became of its results.
	second, out := build(t, b, BuildRequest{ContextDir: dir})
	if first.ID != second.ID || !strings.Contains(out, "image is unchanged") {
		t.Errorf("got %s, then %s:\n%s", first.ID, second.ID, out)
	}
}

// Clients that come while the engine is leaving must not notice.
func TestEngineLeavesBetweenBuilds(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	b := newBuilder(t, func(o *Options) { o.EngineIdle = time.Millisecond })
	for k := range 6 {
		build(t, b, BuildRequest{ContextDir: tree(t, map[string]string{"f": fmt.Sprint(k), "Dockerfile": "FROM scratch\nCOPY f /"})})
		time.Sleep(time.Duration(k*7) * time.Millisecond)
	}
}

func TestOneEngineForAll(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	// The directory is too deep for the path of a socket.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	b := openBuilder(t, dir)
	if len(filepath.Join(engineDir(dir), engineSocket)) < 108 {
		t.Fatal("the directory is not deep enough")
	}
	context := tree(t, map[string]string{"f": "f", "Dockerfile": "FROM scratch\nCOPY f /"})
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for k := range errs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			other, err := Open(b.opts)
			if err == nil {
				_, err = other.Build(t.Context(), BuildRequest{ContextDir: context, Progress: "quiet"})
			}
			errs[k] = err
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	// Those that were started beside the first one leave at once.
	waitFor(t, 10*time.Second, "all engines but one to leave", func() bool { return len(engines(dir)) == 1 })
}

func TestEngineIsKilled(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	b := newBuilder(t)
	context := busyboxContext(t, map[string]string{"Dockerfile": shell + "RUN echo started; echo $$ > /pid; exec sleep 1234.5"})
	out := &signalWriter{want: "started", seen: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := b.Build(t.Context(), BuildRequest{ContextDir: context, Progress: "plain", ProgressOut: out})
		done <- err
	}()
	select {
	case <-out.seen:
	case err := <-done:
		t.Fatalf("ended early: %v\n%s", err, out)
	}
	for pid := range engines(b.opts.Dir) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	select {
	case err = <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the build does not end with its engine")
	}
	if !errors.Is(err, ErrEngine) {
		t.Errorf("got %v", err)
	}
	if n := strings.Count(err.Error(), "\n"); n > 4 {
		t.Errorf("error has %d lines:\n%v", n, err)
	}
	var h interface{ Hint() string }
	if !errors.As(err, &h) {
		t.Errorf("no hint in %v", err)
	}
	if len(stepsOf(t, b)) == 0 {
		t.Error("the test is no test: no step was left behind")
	}
	// The next build sweeps and works.
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(shell+"RUN echo fine > /fine"), 0o644); err != nil {
		t.Fatal(err)
	}
	img, _ := build(t, b, BuildRequest{ContextDir: context})
	if got := readIn(t, img.RootfsPath, "/fine"); got != "fine\n" {
		t.Errorf("got %q", got)
	}
	if steps := stepsOf(t, b); len(steps) != 0 {
		t.Errorf("steps are left: %v", steps)
	}
	if pids := processes("sleep\x001234.5\x00"); len(pids) != 0 {
		t.Errorf("the step's process is left: %v", pids)
	}
	checkNoLeftovers(t, b)
}

// processes finds those with that command line.
func processes(cmdline string) []string {
	var out []string
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range found {
		if b, err := os.ReadFile(p); err == nil && string(b) == cmdline {
			out = append(out, p)
		}
	}
	return out
}

func TestEngineDoesNotStart(t *testing.T) {
	testlane.Need(t, testlane.Root)
	context := tree(t, map[string]string{"Dockerfile": "FROM scratch\nLABEL a=b"})
	request := BuildRequest{ContextDir: context, Progress: "quiet"}
	t.Run("program ends", func(t *testing.T) {
		b := newBuilder(t, func(o *Options) { o.Engine = []string{"/bin/sh", "-c", "echo it is broken >&2; exit 1"} })
		_, err := b.Build(t.Context(), request)
		if !errors.Is(err, ErrEngine) || !strings.Contains(err.Error(), "it is broken") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("program panics", func(t *testing.T) {
		script := `echo "panic: runtime error: index out of range" >&2; for i in 1 2 3 4 5; do echo "goroutine $i [running]:" >&2; done; exit 2`
		b := newBuilder(t, func(o *Options) { o.Engine = []string{"/bin/sh", "-c", script} })
		if err := os.MkdirAll(engineDir(b.opts.Dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(engineDir(b.opts.Dir), engineLog), []byte("panic: long ago\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := b.Build(t.Context(), request)
		if !errors.Is(err, ErrEngine) || !strings.HasSuffix(err.Error(), "its last words: panic: runtime error: index out of range") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no program", func(t *testing.T) {
		b := newBuilder(t, func(o *Options) { o.Engine = []string{"/nonexistent/engine"} })
		if _, err := b.Build(t.Context(), request); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no runc", func(t *testing.T) {
		testlane.Need(t, testlane.BuildKit)
		b := newBuilder(t, func(o *Options) { o.Engine = engineWithout(t, "runc") })
		_, err := b.Build(t.Context(), request)
		var h interface{ Hint() string }
		if !errors.Is(err, ErrMissingTool) || !strings.Contains(err.Error(), "runc") || !errors.As(err, &h) || h.Hint() != "apt-get install runc" {
			t.Errorf("got %v", err)
		}
	})
}

// engineWithout is an engine in a mount namespace where a tool cannot be
// executed.
func engineWithout(t *testing.T, tool string) []string {
	t.Helper()
	path, err := findTool(tool)
	if err != nil {
		t.Fatal(err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `mount --bind /dev/null "$1" && shift && exec "$@"`
	return []string{"unshare", "--mount", "sh", "-c", script, "sh", path, self, EngineCommand}
}

func TestBuildOnFullDisk(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b := openBuilder(t, dir)
	small := tree(t, map[string]string{"f": "f", "Dockerfile": "FROM scratch\nCOPY f /"})
	before, _ := build(t, b, BuildRequest{ContextDir: small})
	filler := filepath.Join(dir, "filler")
	free, err := freeBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, free-3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	// The context fits, the image of it does not.
	large := tree(t, map[string]string{"f": strings.Repeat("large", 300<<10), "Dockerfile": "FROM scratch\nCOPY f /\nCOPY f /g"})
	_, _, err = tryBuild(t, b, BuildRequest{ContextDir: large})
	var h interface{ Hint() string }
	if !errors.Is(err, unix.ENOSPC) || !errors.As(err, &h) || !strings.Contains(h.Hint(), "free space") {
		t.Errorf("got %v", err)
	}
	checkNoLeftovers(t, b)
	images, err := b.Images(t.Context())
	if err != nil || len(images) != 1 || images[0].ID != before.ID {
		t.Errorf("images: %v %v", images, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	build(t, b, BuildRequest{ContextDir: large})
}

// The user's umask decides nothing about an image, and the store is private
// whatever it is.
func TestModesOfTheStore(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	b := newBuilder(t)
	context := tree(t, map[string]string{"Dockerfile": "FROM scratch\nWORKDIR /made"})
	img, _ := build(t, b, BuildRequest{ContextDir: context, Names: []string{"modes"}})
	unix.Umask(0)
	other := newBuilder(t)
	again, _ := build(t, other, BuildRequest{ContextDir: context, Names: []string{"modes"}})
	for _, x := range []Image{img, again} {
		facts := factsIn(t, x.RootfsPath)
		for _, dir := range []string{"/", "/made"} {
			if facts[dir].Mode != "40755" {
				t.Errorf("%s has mode %s", dir, facts[dir].Mode)
			}
		}
	}
	for _, dir := range []string{b.opts.Dir, other.opts.Dir} {
		for _, sub := range []string{"images", "buildkit", "tmp"} {
			checkPrivate(t, filepath.Join(dir, sub))
		}
	}
}

// checkPrivate: no other user can get at anything in dir.
func checkPrivate(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %o", dir, st.Mode().Perm())
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		st, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Name() == engineState: // BuildKit's own, behind 0700
			if st.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %o", p, st.Mode().Perm())
			}
		case st.IsDir():
			checkPrivate(t, p)
		case e.Name() == rootfsFile:
			if st.Mode().Perm() != 0o444 {
				t.Errorf("%s has mode %o", p, st.Mode().Perm())
			}
		case st.Mode().Perm() != 0o600:
			t.Errorf("%s has mode %o", p, st.Mode().Perm())
		}
	}
}

func TestCacheUsageAndPrune(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	b := newBuilder(t)
	context := tree(t, map[string]string{"f": strings.Repeat("f", 1<<20), "Dockerfile": "FROM scratch\nCOPY f /"})
	img, _ := build(t, b, BuildRequest{ContextDir: context})
	u, err := b.CacheUsage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.Bytes < 1<<20 || u.Records == 0 || u.ReclaimableBytes > u.Bytes {
		t.Errorf("got %+v", u)
	}
	freed, err := b.PruneCache(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if freed < 1<<20 {
		t.Errorf("freed %d bytes of %+v", freed, u)
	}
	if u, err = b.CacheUsage(t.Context()); err != nil || u.Bytes > 1<<16 {
		t.Errorf("got %+v %v", u, err)
	}
	// Images do not depend on the cache; the build runs again and gives the same.
	again, out := build(t, b, BuildRequest{ContextDir: context})
	if again.ID != img.ID || strings.Contains(out, "image is unchanged") {
		t.Errorf("got %s, then %s:\n%s", img.ID, again.ID, out)
	}
}

func TestUploadsStall(t *testing.T) {
	now := time.Unix(1000, 0)
	var u uploads
	u.note(transferring("a", false), now)
	if u.stalled(now.Add(stallLimit)) {
		t.Error("stalled too early")
	}
	u.note(transferring("a", false), now.Add(stallLimit))
	if u.stalled(now.Add(stallLimit + time.Second)) {
		t.Error("stalled although it moved")
	}
	if !u.stalled(now.Add(2*stallLimit + time.Second)) {
		t.Error("not stalled")
	}
	u.note(transferring("a", true), now)
	if u.stalled(now.Add(10 * stallLimit)) {
		t.Error("stalled although it is done")
	}
}
