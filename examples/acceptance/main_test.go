package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/examples/small"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

// What TestMain finds and makes.
var (
	binary string // absolute path of the sietch under test; empty: none
	area   string // directory for data directories, on a real disk
)

// slowness is how many times longer than on an ordinary host everything may take:
// SIETCH_TEST_SLOW, for hosts that are emulated themselves.
var slowness = func() float64 {
	n, err := strconv.ParseFloat(os.Getenv("SIETCH_TEST_SLOW"), 64)
	if err != nil || n < 1 {
		return 1
	}
	return n
}()

// within is a limit of time as it is on this host.
func within(d time.Duration) time.Duration { return time.Duration(float64(d) * slowness) }

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "acceptance:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func setUp(m *testing.M) (code int, err error) {
	binary = os.Getenv("SIETCH_BIN")
	if binary == "" {
		if found, err := filepath.Abs("../../bin/sietch"); err == nil {
			if _, err := os.Stat(found); err == nil {
				binary = found
			}
		}
	} else if _, err := os.Stat(binary); err != nil {
		return 0, fmt.Errorf("SIETCH_BIN: %w", err)
	}
	parent := os.Getenv("SIETCH_TEST_DIR")
	if parent == "" {
		parent = "/var/tmp"
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return 0, err
	}
	area, err = os.MkdirTemp(parent, "acceptance-")
	if err != nil {
		return 0, err
	}
	if os.Getenv("SIETCH_TEST_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "acceptance: data directories stay in", area)
	} else {
		defer os.RemoveAll(area)
	}
	defer func() { endBehind() }()
	return m.Run(), nil
}

// needBinary skips where there is nothing to test.
func needBinary(t testing.TB) {
	t.Helper()
	if binary == "" {
		t.Skip("no bin/sietch here and SIETCH_BIN not set: run make")
	}
}

// needMachines asks for all that booting a machine takes.
func needMachines(t testing.TB) {
	t.Helper()
	needBinary(t)
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	if os.Getenv("SIETCH_TEST_SEED") == "" {
		testlane.Need(t, testlane.Mirror)
	}
	if os.Getenv("SIETCH_VMM") == "cloud-hypervisor" {
		testlane.Need(t, testlane.KVM, testlane.CloudHypervisor)
	} else {
		testlane.Need(t, testlane.QEMU)
	}
}

// shared is the data directory of most tests: the kernel is fetched and the
// small image built once.
func shared(t *testing.T) *repo {
	t.Helper()
	r := seeded(t)
	r.watch(t)
	return r
}

// seeded is shared for tests that make nothing in it.
func seeded(t *testing.T) *repo {
	t.Helper()
	needMachines(t)
	r := &repo{dir: filepath.Join(area, "shared")}
	buildShared.Do(func() {
		if seed := os.Getenv("SIETCH_TEST_SEED"); seed != "" {
			copyParts(t, seed, r.dir)
		} else {
			smallImage(t, r)
		}
		if os.Getenv("SIETCH_TEST_SERVE") != "" {
			endBehind = behind(t, r)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return r
}

var buildShared sync.Once

// private is a data directory of a test's own at dir, with the shared one's
// guest kernel and image, so that the mirror is asked once and no build engine
// has to become idle before the host can be judged.
func private(t *testing.T, dir string) *repo {
	t.Helper()
	s := seeded(t)
	// The first machine fetches the kernel.
	warm.Do(func() {
		name := s.runSmall(t)
		s.ok(t, "rm", "-f", name)
	})
	r := &repo{dir: dir}
	if os.Getenv("SIETCH_TEST_KEEP") == "" {
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	copyParts(t, s.dir, dir)
	r.ok(t, "image", "inspect", "small")
	r.watch(t)
	return r
}

var warm sync.Once

// together lets a test run beside others that say so, after those that do not.
// It has a data directory of its own, and judges no times and nothing of the host
// that others change. Where all takes many times longer, one runs at a time.
func together(t *testing.T) {
	t.Helper()
	if slowness == 1 {
		t.Parallel()
	}
}

// apart is together with a private data directory. Where tests are to share one,
// because a server is behind it or the disk is slow, it is the shared one.
func apart(t *testing.T) *repo {
	t.Helper()
	if os.Getenv("SIETCH_TEST_SERVE") != "" || slowness > 1 {
		return shared(t)
	}
	together(t)
	return private(t, filepath.Join(area, fresh("apart")))
}

// copyParts makes a data directory with the kernel and the images of another.
func copyParts(t *testing.T, from, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"kernel", "images"} {
		if out, err := exec.Command("cp", "-a", "--sparse=always", "--reflink=auto", filepath.Join(from, part), dir).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v\n%s", part, err, out)
		}
	}
}

// smallImage builds the image "small".
func smallImage(t *testing.T, r *repo) {
	t.Helper()
	dir := t.TempDir()
	if err := small.WriteContext(dir); err != nil {
		t.Fatal(err)
	}
	r.ok(t, "build", "--progress", "quiet", "-t", "small", dir)
}
