package cloudhypervisor

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
)

func TestTrialKernel(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(trialKernel(trialCode)))
	if err != nil {
		t.Fatal(err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Entry != trialAddress || len(f.Progs) != 2 {
		t.Fatalf("header is %+v with %d programs", f.FileHeader, len(f.Progs))
	}
	code := make([]byte, len(trialCode))
	if _, err := f.Progs[0].ReadAt(code, 0); err != nil || !bytes.Equal(code, trialCode) || f.Progs[0].Type != elf.PT_LOAD || f.Progs[0].Paddr != trialAddress {
		t.Errorf("code is %+v (%v)", f.Progs[0].ProgHeader, err)
	}
	note := make([]byte, f.Progs[1].Filesz)
	if _, err := f.Progs[1].ReadAt(note, 0); err != nil || !bytes.Equal(note, []byte("\x04\x00\x00\x00\x08\x00\x00\x00\x12\x00\x00\x00Xen\x00\x00\x00\x10\x00\x00\x00\x00\x00")) {
		t.Errorf("note is %q (%v)", note, err)
	}
}

// TestTrial runs the trial's code where it must succeed and broken code that
// must be found out.
func TestTrial(t *testing.T) {
	testlane.Need(t, testlane.CloudHypervisor, testlane.KVM)
	d := New(Options{Binary: realBinary()})
	if accel, reason, err := d.Acceleration(t.Context()); accel != vmm.KVM || reason != "" || err != nil {
		t.Errorf("got %q, %q, %v", accel, reason, err)
	}
	began := time.Now()
	if err := d.host.trial(t.Context(), trialCode); err != nil {
		t.Errorf("trial: %v", err)
	}
	t.Logf("a trial takes %v", time.Since(began))
	if err := d.host.trial(t.Context(), []byte{0x0f, 0x0b}); err == nil { // ud2
		t.Error("code that goes astray passed")
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.host.trial(short, []byte{0xeb, 0xfe}); err == nil { // jmp to itself
		t.Error("code that hangs passed")
	}
}

// TestTrialOfFake: a VMM that cannot run machines is found out, once.
func TestTrialOfFake(t *testing.T) {
	dir := t.TempDir()
	h := func(orders ...string) *findings {
		d := New(Options{Binary: fakeBinary(t, orders...)})
		h, err := d.findHost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if err := h("fail=vm.boot").trial(t.Context(), trialCode); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("no boot: got %v", err)
	}
	if err := h("die=vm.create").trial(t.Context(), trialCode); err == nil || !strings.Contains(err.Error(), "the sky is falling") {
		t.Errorf("no machine: got %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := h().trial(short, trialCode); err == nil || !strings.Contains(err.Error(), "trial of KVM failed") {
		t.Errorf("a guest that does not end: got %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "sietch-trial-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q (%v)", left, err)
	}

	// What was found out is kept for others.
	cache := filepath.Join(dir, "trial.json")
	d := New(Options{Binary: fakeBinary(t, "fail=vm.boot"), TrialCache: cache})
	accel, reason, err := d.Acceleration(t.Context())
	if err != nil || accel != "" || reason == "" {
		t.Fatalf("got %q, %q, %v", accel, reason, err)
	}
	var kept findings
	if err := host.Recall(cache, &kept); err != nil || !kept.Tried || kept.NoKVM != reason {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	if _, again, err := New(Options{Binary: d.opts.Binary, TrialCache: cache}).Acceleration(t.Context()); err != nil || again != reason {
		t.Errorf("asked again: got %q, %v, want %q", again, err, reason)
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := New(Options{Binary: fakeBinary(t)}).Acceleration(dead); err == nil {
		t.Error("cancelled: no error")
	}
}
