package vmmtest

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// Boot is what a machine boots from.
type Boot struct{ Kernel, Initramfs, Cmdline string }

// Guest returns a boot of the counting guest on the distribution's cloud
// kernel, which is fetched once for each user.
func Guest(t testing.TB) Boot {
	return GuestWith(t, nil)
}

// GuestWith is Guest with more files, by their path in the initramfs.
func GuestWith(t testing.TB, more map[string][]byte) Boot {
	t.Helper()
	testlane.Need(t, testlane.Mirror)
	tree := kernelTree(t)
	kernels, err := filepath.Glob(tree + "/boot/vmlinuz-*")
	if err != nil || len(kernels) != 1 {
		t.Fatalf("kernel package holds kernels %v (%v), want one", kernels, err)
	}
	files := map[string][]byte{"init": guestProgram(t)}
	for i, m := range guestModules(t, tree) {
		files[fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m))] = readFile(t, m)
	}
	for name, data := range more {
		files[name] = data
	}
	initramfs := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(initramfs, archive(t, files), 0o600); err != nil {
		t.Fatal(err)
	}
	return Boot{Kernel: kernels[0], Initramfs: initramfs, Cmdline: "quiet panic=-1 random.trust_cpu=on"}
}

// kernelTree unpacks the kernel package into the user's cache.
func kernelTree(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "sietch-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Test binaries of several packages run at once.
	lock, err := os.Create(filepath.Join(dir, "kernel.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(dir, "kernel")
	if _, err := os.Stat(tree); err == nil {
		return tree
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		var words bytes.Buffer
		cmd.Stderr = &words
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, words.String())
		}
		return string(out)
	}
	name := ""
	for line := range strings.Lines(run("apt-cache", "depends", "--no-recommends", "linux-image-cloud-amd64")) {
		if _, dep, ok := strings.Cut(line, "Depends: "); ok && strings.HasPrefix(dep, "linux-image-") {
			name = strings.TrimSpace(dep)
			break
		}
	}
	if name == "" {
		t.Fatal("the package lists know no linux-image-cloud-amd64; run apt-get update")
	}
	run("apt-get", "download", "-q", name)
	packages, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil || len(packages) == 0 {
		t.Fatalf("apt-get download %s left no package (%v)", name, err)
	}
	half := tree + ".new"
	os.RemoveAll(half)
	run("dpkg-deb", "-x", packages[0], half)
	for _, p := range packages {
		os.Remove(p)
	}
	if err := os.Rename(half, tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// guestModules are the files of the modules the guest needs, dependencies first.
func guestModules(t testing.TB, tree string) []string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(tree+"/lib/modules", func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	seen := map[string]bool{}
	var add func(name string)
	add = func(name string) {
		file, ok := files[name]
		if seen[name] || !ok { // built in
			return
		}
		seen[name] = true
		for _, dep := range moduleDepends(t, file) {
			add(dep)
		}
		order = append(order, file)
	}
	for _, name := range []string{"virtio_mmio", "virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng"} {
		add(name)
	}
	return order
}

func moduleDepends(t testing.TB, file string) []string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Section(".modinfo").Data()
	if err != nil {
		t.Fatal(err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if deps, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(deps) > 0 {
			return strings.Split(strings.ReplaceAll(string(deps), "-", "_"), ",")
		}
	}
	return nil
}

var guestBuild struct {
	sync.Once
	elf []byte
	err error
}

// guestProgram builds /init.
func guestProgram(t testing.TB) []byte {
	t.Helper()
	guestBuild.Do(func() {
		dir, err := os.MkdirTemp("", "sietch-guest-")
		if err != nil {
			guestBuild.err = err
			return
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/init", "github.com/sietch-dev/sietch/runtime/vmm/vmmtest/guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			guestBuild.err = fmt.Errorf("%w: %s", err, out)
			return
		}
		guestBuild.elf, guestBuild.err = os.ReadFile(dir + "/init")
	})
	if guestBuild.err != nil {
		t.Fatalf("build test guest: %v", guestBuild.err)
	}
	return guestBuild.elf
}

// archive makes a cpio of files, with the directories they are in.
func archive(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := cpio.NewWriter(&out)
	dirs := map[string]bool{}
	write := func(h cpio.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"dev", "proc"} {
		dirs[dir] = true
		write(cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755}, nil)
	}
	for name, data := range files {
		if dir := filepath.Dir(name); dir != "." && !dirs[dir] {
			dirs[dir] = true
			write(cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755}, nil)
		}
		write(cpio.Header{Name: name, Mode: cpio.TypeReg | 0o755}, data)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
