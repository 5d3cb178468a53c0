package qemu

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

func sparseFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// counted is a QEMU that only knows its version, and counts how often it was asked.
func counted(t *testing.T, version string) (binary string, asked func() int) {
	t.Helper()
	dir := t.TempDir()
	binary = filepath.Join(dir, "qemu")
	script := "#!/bin/sh\necho x >> " + dir + "/asked\necho 'QEMU emulator version " + version + " (Debian 1)'\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return binary, func() int {
		data, _ := os.ReadFile(dir + "/asked")
		return strings.Count(string(data), "x")
	}
}

func TestProbeRemembers(t *testing.T) {
	binary, asked := counted(t, "9.1.2")
	cache := filepath.Join(t.TempDir(), "new", "accel.json")
	identity := func(o Options) vmm.Identity {
		t.Helper()
		o.Binary, o.TrialCache = binary, cache
		id, err := New(o).Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	want := vmm.Identity{Driver: "qemu", Version: "9.1.2", Machine: "microvm", Accel: vmm.TCG, CPU: "max"}
	for range 3 {
		if got := identity(Options{Accel: vmm.TCG}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("QEMU was asked %d times, want once", n)
	}
	// Another binary under the same name is asked anew; so is one whose cache is
	// damaged.
	if err := os.Chtimes(binary, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	identity(Options{Accel: vmm.TCG})
	if n := asked(); n != 2 {
		t.Errorf("after a change QEMU was asked %d times, want 2", n)
	}
	if err := os.WriteFile(cache, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	identity(Options{Accel: vmm.TCG})
	if n := asked(); n != 3 {
		t.Errorf("after damage QEMU was asked %d times, want 3", n)
	}
}

func TestProbeRefuses(t *testing.T) {
	old, _ := counted(t, "5.2.0")
	strange, _ := counted(t, "unknown")
	for what, c := range map[string]struct {
		binary string
		accel  vmm.Accel
		says   string
	}{
		"no binary":         {"/nonexistent/qemu", "", "find QEMU"},
		"too old":           {old, "", "too old"},
		"strange version":   {strange, "", "unknown answer"},
		"other accelerator": {fakeNew(t), "hvf", "not known"},
	} {
		_, err := New(Options{Binary: c.binary, Accel: c.accel}).Identity(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", what, err, c.says)
		}
	}
}

func fakeNew(t *testing.T) string { b, _ := counted(t, "8.2.0"); return b }

// TestForcedKVM: who asks for KVM gets it or an error, never TCG.
func TestForcedKVM(t *testing.T) {
	h := findings{Version: "7.2.0", binary: fakeNew(t)}
	err := h.chooseAccel(t.Context(), vmm.KVM)
	if err == nil && h.Accel != vmm.KVM || err != nil && h.Accel == vmm.TCG {
		t.Errorf("got %q, %v", h.Accel, err)
	}
}

// TestTrial runs the trial's code where it must succeed and broken code that
// must be found out.
func TestTrial(t *testing.T) {
	testlane.Need(t, testlane.QEMU)
	d := New(Options{Accel: vmm.TCG, Logger: slog.New(slog.DiscardHandler)})
	h, err := d.findHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.trial(t.Context(), trialCode, "tcg", "max"); err != nil {
		t.Errorf("trial under TCG: %v", err)
	}
	resets := []byte{0xb0, 0xfe, 0xe6, 0x64, 0x0f, 0x0b} // out 0xfe, 0x64; ud2
	if err := h.trial(t.Context(), resets, "tcg", "max"); err == nil {
		t.Error("code that goes astray passed")
	}
	if err := h.trial(t.Context(), trialCode, "no such accelerator", "max"); err == nil || !strings.Contains(err.Error(), "no such accelerator") {
		t.Errorf("unknown accelerator: got %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.trial(short, []byte{0xeb, 0xfe}, "tcg", "max"); err == nil { // jmp to itself
		t.Error("code that hangs passed")
	}
}
