package builder

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// TestMain makes the test binary able to host the engine, as the real one is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == EngineCommand {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := EngineMain(ctx, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if sharedDir != "" {
		// The engine of the shared directory has no test to end it.
		if err := endShared(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Most tests of builds share one data directory, and in it an image with a
// shell and the usual tools.
var (
	sharedOnce    sync.Once
	sharedDir     string
	sharedBuilder *Builder
	sharedErr     error
)

const busybox = "test/busybox:latest"

// shared needs what builds need, and returns the shared Builder.
func shared(t *testing.T) *Builder {
	t.Helper()
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	sharedOnce.Do(func() {
		if sharedDir, sharedErr = os.MkdirTemp("", "sietch-builder-test-"); sharedErr != nil {
			return
		}
		if sharedBuilder, sharedErr = Open(Options{Dir: sharedDir}); sharedErr != nil {
			return
		}
		dir := busyboxContext(t, map[string]string{"Dockerfile": shell})
		_, sharedErr = sharedBuilder.Build(context.Background(), BuildRequest{ContextDir: dir, Names: []string{busybox}, Progress: "plain"})
	})
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return sharedBuilder
}

func endShared() error {
	for pid := range engines(sharedDir) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return err
		}
	}
	for end := time.Now().Add(20 * time.Second); len(engines(sharedDir)) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the engine of %s does not end", sharedDir)
		}
	}
	return dropTemp(sharedDir)
}

// newBuilder opens a Builder on a directory of its own, whose engine is gone
// when the test ends.
func newBuilder(t *testing.T, change ...func(*Options)) *Builder {
	t.Helper()
	return openBuilder(t, t.TempDir(), change...)
}

func openBuilder(t *testing.T, dir string, change ...func(*Options)) *Builder {
	t.Helper()
	o := Options{Dir: dir, EngineIdle: 20 * time.Second}
	for _, c := range change {
		c(&o)
	}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stopEngine(t, dir)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// engines finds the engine processes of a data directory.
func engines(dir string) map[int]bool {
	out := map[int]bool{}
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return out
	}
	for _, p := range found {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		if len(args) > 3 && args[1] == EngineCommand && args[2] == "--dir" && args[3] == dir {
			pid := 0
			fmt.Sscanf(filepath.Base(filepath.Dir(p)), "%d", &pid)
			out[pid] = true
		}
	}
	return out
}

// stopEngine ends the engine and checks that it leaves no mount behind.
func stopEngine(t *testing.T, dir string) {
	t.Helper()
	for pid := range engines(dir) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Errorf("stop engine: %v", err)
		}
	}
	waitFor(t, 30*time.Second, "engine to end", func() bool { return len(engines(dir)) == 0 })
	left, err := mountsBelow(dir)
	if err != nil {
		t.Error(err)
	}
	if len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
		if err := unmountBelow(dir); err != nil {
			t.Error(err)
		}
	}
}

func waitFor(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}

// tree is a build context written from a map of names to contents.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// busyboxContext is a context with a static shell for FROM scratch.
func busyboxContext(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := tree(t, files)
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("no static busybox: %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "busybox"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shell starts a Dockerfile with a shell and the usual tools.
const shell = `FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "sh", "-c", "/bin/busybox mkdir -p -m 1777 /usr/bin /etc /tmp && /bin/busybox --install -s /bin"]
`

// build builds a context with plain progress, which is shown when it fails.
func build(t *testing.T, b *Builder, r BuildRequest) (Image, string) {
	t.Helper()
	img, out, err := tryBuild(t, b, r)
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return img, out
}

func tryBuild(t *testing.T, b *Builder, r BuildRequest) (Image, string, error) {
	t.Helper()
	var out bytes.Buffer
	if r.Progress == "" {
		r.Progress = "plain"
	}
	r.ProgressOut = &out
	img, err := b.Build(t.Context(), r)
	return img, out.String(), err
}

// fsck checks an image with e2fsck.
func fsck(t *testing.T, path string) {
	t.Helper()
	out, err := exec.Command("/usr/sbin/e2fsck", "-fn", path).CombinedOutput()
	if err != nil {
		t.Errorf("e2fsck %s: %v\n%s", path, err, out)
	}
}
