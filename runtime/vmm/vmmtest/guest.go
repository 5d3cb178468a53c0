package vmmtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cavaliergopher/cpio"
)

// Boot is what a machine boots from.
type Boot struct{ Kernel, Initramfs, Cmdline string }

var guestBuild struct {
	sync.Once
	elf []byte
	err error
}

// GuestProgram builds the counting guest: a static /init that loads the modules
// named in /modules/index of its initramfs, as package builder/guestboot makes
// it, and counts.
func GuestProgram(t testing.TB) []byte {
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

// Archive makes a cpio of executable files by their paths. The kernel takes
// several archives behind each other as one initramfs.
func Archive(t testing.TB, files map[string][]byte) []byte {
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
