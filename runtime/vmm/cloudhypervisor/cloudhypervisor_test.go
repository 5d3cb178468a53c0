package cloudhypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// realBinary is the cloud-hypervisor that lane's tests run.
func realBinary() string { return os.Getenv("SIETCH_CLOUD_HYPERVISOR") }

// TestContract runs the contract on cloud-hypervisor.
func TestContract(t *testing.T) {
	testlane.Need(t, testlane.CloudHypervisor, testlane.KVM)
	cache := filepath.Join(t.TempDir(), "trial.json")
	boot := guest(t)
	vmmtest.Run(t, vmmtest.Suite{
		New: func(testing.TB) vmm.Driver {
			return New(Options{Binary: realBinary(), TrialCache: cache})
		},
		Boot:         func(testing.TB) vmmtest.Boot { return boot },
		MemoryBytes:  128 << 20,
		CounterBytes: 2 << 20,
		Dump:         dumpMemory,
		Generations:  20,
		Clones:       8,
	})
}

// guest is the counting guest on the product's kernel, which is fetched once
// for each user. A kernel and an initramfs that are there already can be named
// instead, for hosts without a package mirror.
func guest(t testing.TB) vmmtest.Boot {
	t.Helper()
	if k := os.Getenv("SIETCH_TEST_KERNEL"); k != "" {
		return vmmtest.Boot{Kernel: k, Initramfs: os.Getenv("SIETCH_TEST_INITRAMFS"), Cmdline: os.Getenv("SIETCH_TEST_CMDLINE")}
	}
	testlane.Need(t, testlane.Mirror)
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	g, err := guestboot.Ensure(t.Context(), guestboot.Options{
		Dir:     filepath.Join(user, "sietch-test", "kernel"),
		InitELF: vmmtest.GuestProgram(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return vmmtest.Boot{Kernel: g.Kernel, Initramfs: g.Initramfs, Cmdline: g.Cmdline}
}

// dumpMemory has cloud-hypervisor write all of RAM, and lays it out as the
// memory file is: its dump has the ranges of guest memory one after the other,
// which up to 3 GiB are one.
func dumpMemory(t testing.TB, vm vmm.Machine, file string) {
	t.Helper()
	m := vm.(*machine)
	own, err := findOwnDir(m.handle.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.mkdir(snapshotName); err != nil {
		t.Fatal(err)
	}
	defer own.remove(snapshotName)
	// It may be running: then it is stopped for it.
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := snapshotRequest{"file://" + own.path(snapshotName)}
	if err := (api{filepath.Join(m.handle.RunDir, socketName)}).put(t.Context(), "vm.snapshot", r); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(own.path(snapshotName, ramName), file); err != nil {
		t.Fatal(err)
	}
}

// runDir makes a directory with a short path.
func runDir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// fakeBoot is what a fake pretends to boot.
func fakeBoot(t testing.TB) vmmtest.Boot {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(path, []byte("not booted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return vmmtest.Boot{Kernel: path, Initramfs: path}
}

// fakeSpec is a machine for a fake.
func fakeSpec(t testing.TB) vmm.Spec {
	t.Helper()
	dir, boot := t.TempDir(), fakeBoot(t)
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return vmm.Spec{
		ID: "fake", RunDir: runDir(t), CPUs: 1, MemoryBytes: 32 << 20, MemoryFile: file("memory", 32<<20),
		Kernel: boot.Kernel, Initramfs: boot.Initramfs,
		Disks: []vmm.Disk{
			{ID: "image", Path: file("image", 1<<20), ReadOnly: true},
			{ID: "layer", Path: file("layer", 1<<20)},
		},
		ConsoleLog: filepath.Join(dir, "console.log"), MainLog: filepath.Join(dir, "main.log"),
	}
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
