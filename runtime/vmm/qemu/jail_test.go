package qemu_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
)

// TestJailAndNetwork runs a machine as a nobody, in a network namespace with
// files only root may read, and takes and restores it there.
func TestJailAndNetwork(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.QEMU)
	boot := guest(t)
	ns := namespace(t, "tap0")
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	runDir := func() string {
		d, err := os.MkdirTemp("", "vmm")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(d) })
		return d
	}
	spec := vmm.Spec{
		ID: "jailed", RunDir: runDir(), CPUs: 2, MemoryBytes: 128 << 20, MemoryFile: file("memory, with comma", 128<<20),
		Kernel: boot.Kernel, Initramfs: boot.Initramfs, Cmdline: boot.Cmdline,
		Disks: []vmm.Disk{
			{ID: "image", Path: file("image", 1<<20), ReadOnly: true},
			{ID: "layer", Path: file("layer, with comma", 1<<20)},
		},
		NIC:        &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"},
		ConsoleLog: filepath.Join(dir, "console.log"), MainLog: filepath.Join(dir, "main.log"),
		NetNS: ns,
		Jail:  &vmm.Jail{UID: 64999, GID: 64998},
	}
	d := qemu.New(qemu.Options{})
	m, err := d.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	waitTick(t, m, spec.ConsoleLog)
	checkJail(t, m, spec)

	// Tracking works on a process that lost its privileges.
	mem, err := guestmem.Open(guestmem.Target{PID: m.Handle().PID, MemoryFile: spec.MemoryFile, SizeBytes: spec.MemoryBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	tracker, err := mem.Track(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	t.Logf("tracker: %s", tracker.Name())

	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.SaveDevices(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	dump := file("dump", 0)
	f, err := os.OpenFile(dump, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pages, err := tracker.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Copy(t.Context(), pages, f); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}

	spec.RunDir, spec.MemoryFile, spec.ConsoleLog = runDir(), dump, filepath.Join(dir, "again.log")
	spec.Restore = &vmm.Restore{Dir: state, Saved: m.Identity()}
	spec.Kernel, spec.Initramfs = "", ""
	again, err := d.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Kill()
	if err := again.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitTick(t, again, spec.ConsoleLog)
	checkJail(t, again, spec)
	if err := again.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := again.SaveDevices(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}

	// Errors name what is missing.
	spec.RunDir = runDir()
	spec.NIC = &vmm.NIC{ID: "net0", Tap: "tap9", MAC: "02:73:69:65:74:63"}
	if _, err := d.Launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "tap9") {
		t.Errorf("launch with a tap that is not there: got %v", err)
	}
	err = process.InNetNS(ns, func() error {
		if _, err := net.InterfaceByName("tap9"); err == nil {
			return fmt.Errorf("the missing tap was made")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// checkJail looks at the process itself.
func checkJail(t *testing.T, m vmm.Machine, s vmm.Spec) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", m.Handle().PID)
	data, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Uid": "64999 64999 64999 64999", "Gid": "64998 64998 64998 64998", "Groups": "64998",
		"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if w, ok := want[name]; ok {
			if got := strings.Join(strings.Fields(value), " "); got != w {
				t.Errorf("%s is %q, want %q", name, got, w)
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("status does not tell %v", want)
	}
	if root, err := os.Readlink(proc + "root"); err != nil || root != filepath.Join(s.RunDir, "root") {
		t.Errorf("root directory is %s (%v)", root, err)
	}
	var here, there unix.Stat_t
	if err := unix.Stat(s.NetNS, &here); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(proc+"ns/net", &there); err != nil || here.Ino != there.Ino {
		t.Errorf("network namespace is another (%v)", err)
	}
}

// namespace makes a network namespace with a tap and returns its path.
func namespace(t *testing.T, tap string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A thread with a namespace of its own, which the mount keeps.
	done := make(chan error, 1)
	go func() { done <- makeNamespace(path, tap) }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// waitTick waits for a report of the counting guest.
func waitTick(t *testing.T, m vmm.Machine, console string) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		data, _ := os.ReadFile(console)
		if strings.Contains(string(data), "tick ") {
			return
		}
		select {
		case <-m.Done():
			t.Fatalf("machine ended: %v; console: %s", m.Err(), data)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("no tick; console: %s", data)
		}
	}
}
