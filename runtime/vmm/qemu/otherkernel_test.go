package qemu_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// TestGuestmemOnGuestKernel runs the tests of package guestmem in a machine: on
// the distribution's kernel, which may have other ways to track writes than the
// host's (Debian 12's has soft-dirty bits and no PAGEMAP_SCAN).
func TestGuestmemOnGuestKernel(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.QEMU)
	if testing.Short() {
		t.Skip("boots a machine and runs a test suite in it")
	}
	boot := guest(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "guestmem.test")
	cmd := exec.Command("go", "test", "-c", "-o", program, "-ldflags=-s -w", "github.com/sietch-dev/sietch/runtime/guestmem")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build tests of guestmem: %v: %s", err, out)
	}
	elf, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	initramfs, err := os.ReadFile(boot.Initramfs)
	if err != nil {
		t.Fatal(err)
	}
	initramfs = append(initramfs, vmmtest.Archive(t, map[string][]byte{"guestmem.test": elf})...)
	write := func(name string, data []byte, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if size > 0 {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	run, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	const memory = 512 << 20
	spec := vmm.Spec{
		ID: "guestmem", RunDir: run, CPUs: 2, MemoryBytes: memory, MemoryFile: write("memory", nil, memory),
		Kernel: boot.Kernel, Initramfs: write("initramfs", initramfs, 0), Cmdline: boot.Cmdline + " vmmtest.run=/guestmem.test vmmtest.tests=Collect|Written",
		ConsoleLog: filepath.Join(dir, "console.log"), MainLog: filepath.Join(dir, "main.log"),
	}
	m, err := qemu.New(qemu.Options{}).Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	select {
	case <-m.Done():
	case <-time.After(5 * time.Minute):
	}
	console, err := os.ReadFile(spec.ConsoleLog)
	if err != nil {
		t.Fatal(err)
	}
	console = bytes.ReplaceAll(console, []byte("\r"), nil)
	if !regexp.MustCompile(`(?m)^PASS$`).Match(console) || !bytes.Contains(console, []byte("--- PASS: TestCollectKeepsACopyRight/none")) {
		t.Fatalf("tests did not pass (machine: %v):\n%s", m.Err(), console)
	}
	for _, name := range []string{"uffd-wp", "soft-dirty"} {
		if bytes.Contains(console, []byte("--- PASS: TestCollectKeepsACopyRight/"+name)) {
			t.Logf("tracked there by %s", name)
		}
	}
}
