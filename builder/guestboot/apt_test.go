package guestboot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestKernelDependencies(t *testing.T) {
	for _, c := range []struct {
		name, depends string
		want          []string
	}{
		{"Debian's meta package", "linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3)", []string{"linux-image-6.1.0-57-cloud-amd64=6.1.192-3"}},
		{"Debian's kernel", "kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool", nil},
		{"split", "linux-base-6.16 (= 1), linux-binary-6.16-cloud-amd64 (= 6.16.3-1), linux-modules-6.16-cloud-amd64:amd64 (= 6.16.3-1)",
			[]string{"linux-binary-6.16-cloud-amd64=6.16.3-1", "linux-modules-6.16-cloud-amd64=6.16.3-1"}},
		{"Ubuntu's", "kmod, linux-base, linux-modules-6.8.0-31-generic | linux-modules-other, linux-modules-extra-6.8.0-31-generic",
			[]string{"linux-modules-6.8.0-31-generic"}},
		{"none", "", nil},
	} {
		if d := cmp.Diff(c.want, kernelDependencies(c.depends)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestComplaints(t *testing.T) {
	got := complaints("Hit:1 x\nErr:2 http://m stable InRelease\n  Could not connect\nW: Failed to fetch\nE: No packages found\n")
	if want := "; Err:2 http://m stable InRelease; W: Failed to fetch; E: No packages found"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// needApt skips where the tools are not there; no mirror is needed.
func needApt(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
}

// repository makes a package repository; its line for sources.list is returned.
// packages map "NAME VERSION" to Depends and files.
func repository(t *testing.T, packages map[string]debContent) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sietch-repository-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // apt reads as a user of its own
		t.Fatal(err)
	}
	var index bytes.Buffer
	for _, id := range slices.Sorted(maps.Keys(packages)) {
		name, version, _ := strings.Cut(id, " ")
		tree := filepath.Join(t.TempDir(), name)
		control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: nobody <nobody@example.org>\nDescription: x\n", name, version)
		if d := packages[id].depends; d != "" {
			control += "Depends: " + d + "\n"
		}
		files := maps.Clone(packages[id].files)
		if files == nil {
			files = make(map[string][]byte)
		}
		files["DEBIAN/control"] = []byte(control)
		for file, body := range files {
			path := filepath.Join(tree, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, body, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		deb := filepath.Join(dir, name+".deb")
		if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, deb).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
		b, err := os.ReadFile(deb)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&index, "%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, name, len(b), sha256.Sum256(b))
	}
	if err := os.WriteFile(filepath.Join(dir, "Packages"), index.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return "deb [trusted=yes] file:" + dir + " ./\n"
}

type debContent struct {
	depends string
	files   map[string][]byte
}

func TestAptSource(t *testing.T) {
	needApt(t)
	kernel := kernelFile("Xen", 18)
	image := bootImage(sized(lz4Stored(kernel), len(kernel)))
	modules := func(dir string) map[string][]byte {
		return map[string][]byte{
			dir + "/modules.builtin":                       []byte("kernel/fs/ext4/ext4.ko\n"),
			dir + "/kernel/drivers/block/virtio_blk.ko":    kernelObject("depends=virtio"),
			dir + "/kernel/drivers/virtio/virtio-thing.ko": kernelObject(),
			dir + "/modules.order":                         []byte("not wanted"),
			"usr/share/doc/copyright":                      []byte("not wanted"),
		}
	}
	debian := modules("lib/modules/6.1.0-9-cloud-amd64")
	debian["boot/vmlinuz-6.1.0-9-cloud-amd64"] = image
	for _, c := range []struct {
		name     string
		packages map[string]debContent
		version  string
		debs     []string
	}{
		{"Debian", map[string]debContent{
			"linux-image-cloud-amd64 6.1.9-1":         {"linux-image-6.1.0-9-cloud-amd64 (= 6.1.9-1)", nil},
			"linux-image-6.1.0-9-cloud-amd64 6.1.9-1": {"kmod, linux-base", debian},
		}, "6.1.0-9-cloud-amd64", []string{"linux-image-6.1.0-9-cloud-amd64 6.1.9-1"}},
		{"Ubuntu", map[string]debContent{
			"linux-image-virtual 6.8.31":              {"linux-image-6.8.0-31-generic, intel-microcode", nil},
			"linux-image-6.8.0-31-generic 6.8.0-31":   {"linux-modules-6.8.0-31-generic", map[string][]byte{"boot/vmlinuz-6.8.0-31-generic": image}},
			"linux-modules-6.8.0-31-generic 6.8.0-31": {"", modules("usr/lib/modules/6.8.0-31-generic")},
		}, "6.8.0-31-generic", []string{"linux-image-6.8.0-31-generic 6.8.0-31", "linux-modules-6.8.0-31-generic 6.8.0-31"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := aptSource{sources: repository(t, c.packages)}.fetch(context.Background(), dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if p.Version != c.version {
				t.Errorf("version %s, want %s", p.Version, c.version)
			}
			if d := cmp.Diff(c.debs, slices.Sorted(maps.Keys(p.Debs))); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff([]string{"virtio_blk", "virtio_thing"}, slices.Sorted(maps.Keys(p.Modules))); d != "" {
				t.Error(d)
			}
			if b, err := os.ReadFile(p.Image); err != nil || !bytes.Equal(b, image) {
				t.Errorf("image: %d bytes, %v", len(b), err)
			}
			for _, sum := range p.Debs {
				if len(sum) != 64 {
					t.Errorf("checksum %q", sum)
				}
			}
		})
	}
}

func TestAptSourceFailures(t *testing.T) {
	needApt(t)
	log := slog.New(slog.DiscardHandler)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	// What a killed fetch left is taken away by the next one.
	dead := filepath.Join(tmp, "sietch-apt-dead")
	if err := os.Mkdir(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dead, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	// A package that is not what the list says it is.
	tampered := repository(t, map[string]debContent{"linux-image-cloud-amd64 1": {"linux-image-1-cloud", nil}, "linux-image-1-cloud 1": {}})
	dir := strings.Fields(tampered)[2]
	deb, err := os.OpenFile(filepath.Join(strings.TrimPrefix(dir, "file:"), "linux-image-cloud-amd64.deb"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deb.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	deb.Close()
	for name, c := range map[string]struct {
		sources string
		says    []string
	}{
		"unreachable": {"deb http://127.0.0.1:1/debian stable main\n", []string{"hint: apt-get update", "linux-image-cloud-amd64"}},
		"no kernel":   {repository(t, map[string]debContent{"hello 1": {}}), []string{"Unable to locate package linux-image-cloud-amd64", "linux-image-virtual"}},
		"depends on none": {repository(t, map[string]debContent{"linux-image-cloud-amd64 1": {"something-else", nil}}),
			[]string{"depends on no kernel"}},
		"no image": {repository(t, map[string]debContent{"linux-image-cloud-amd64 1": {"linux-image-1-cloud (= 1)", nil}, "linux-image-1-cloud 1": {}}),
			[]string{"hold no kernel"}},
		"checksum": {tampered, []string{"linux-image-cloud-amd64"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := aptSource{sources: c.sources}.fetch(context.Background(), t.TempDir(), log)
			if !errors.Is(err, ErrMirror) {
				t.Fatalf("got %v, want ErrMirror", err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
	t.Run("no tools", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if _, err := (aptSource{}).fetch(context.Background(), t.TempDir(), log); !errors.Is(err, ErrNoApt) {
			t.Errorf("got %v, want ErrNoApt", err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := (aptSource{sources: "deb http://127.0.0.1:1/ x main\n"}).fetch(ctx, t.TempDir(), log); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want canceled", err)
		}
	})
	if left, _ := filepath.Glob(filepath.Join(tmp, "sietch-apt-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The real thing: the host's mirror and its kernel.
func TestFetchFromMirror(t *testing.T) {
	testlane.Need(t, testlane.Mirror)
	before, err := os.ReadDir("/var/lib/apt/lists")
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	o := Options{Dir: filepath.Join(t.TempDir(), "kernel"), InitELF: []byte("init"), Progress: &said}
	g, err := Ensure(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kernel %s, %s", g.KernelVersion, g.KernelDigest)
	if said.Len() == 0 {
		t.Error("no progress was reported")
	}
	b, err := os.ReadFile(g.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := hasPVHEntry(b); err != nil || !ok {
		t.Errorf("the kernel has no PVH entry (%v): it boots slower than it could", err)
	}
	if after, err := os.ReadDir("/var/lib/apt/lists"); err != nil || len(after) != len(before) {
		t.Errorf("the host's package lists changed: %d files before, %d after (%v)", len(before), len(after), err)
	}
}
