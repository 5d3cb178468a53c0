package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// What TestMain finds and makes.
var (
	binary string // absolute path of the sietch under test; empty: none
	area   string // directory for data directories, on a real disk
)

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
	testlane.Need(t, testlane.Root, testlane.QEMU, testlane.BuildKit, testlane.Mirror)
}

// shared is the data directory of most tests: the kernel is fetched and the
// small image built once.
func shared(t *testing.T) *repo {
	t.Helper()
	needMachines(t)
	r := &repo{dir: filepath.Join(area, "shared")}
	buildShared.Do(func() { smallImage(t, r) })
	if t.Failed() {
		t.FailNow()
	}
	r.watch(t)
	return r
}

var buildShared sync.Once

// private is a data directory of a test's own at dir, with the shared one's
// guest kernel and image, so that the mirror is asked once and no build engine
// has to become idle before the host can be judged.
func private(t *testing.T, dir string) *repo {
	t.Helper()
	s := shared(t)
	// The first machine fetches the kernel.
	warm.Do(func() {
		name := s.runSmall(t)
		s.ok(t, "rm", "-f", name)
	})
	r := &repo{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"kernel", "images"} {
		if out, err := exec.Command("cp", "-a", "--sparse=always", filepath.Join(s.dir, part), dir).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v\n%s", part, err, out)
		}
	}
	r.ok(t, "image", "inspect", "small")
	r.watch(t)
	return r
}

var warm sync.Once

// smallImage builds "small": BusyBox and the probe, and no more. It needs no
// network and no base image.
func smallImage(t *testing.T, r *repo) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "etc", "tmp", "root", "proc", "sys", "dev", "run", "mnt"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("the small image is made of the host's busybox-static: %v", err)
	}
	for _, step := range [][]string{
		{"cp", busybox, filepath.Join(root, "bin/busybox")},
		{filepath.Join(root, "bin/busybox"), "--install", "-s", filepath.Join(root, "bin")},
		{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(root, "bin/probe"), "../probe"},
	} {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", step, err, out)
		}
	}
	// --install writes links to where busybox lies now.
	links, err := os.ReadDir(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type()&os.ModeSymlink == 0 {
			continue
		}
		path := filepath.Join(root, "bin", l.Name())
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("busybox", path); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"root/etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
		"root/etc/group":      "root:x:0:\nnogroup:x:65534:\n",
		"root/etc/machine-id": "",
		"root/etc/hostname":   "unset\n",
		"Dockerfile":          "FROM scratch\nCOPY root/ /\nENV PATH=/bin HOME=/root\nWORKDIR /root\nCMD [\"/bin/probe\", \"serve\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.ok(t, "build", "--progress", "quiet", "-t", "small", dir)
}
