package vmm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func goodSpec(t *testing.T) Spec {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte{1}, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return Spec{
		ID: "a1", RunDir: "/run/a1", CPUs: 1, MemoryBytes: 64 << 20, MemoryFile: file("ram", 64<<20),
		Kernel: file("kernel", 1), Initramfs: file("initramfs", 1),
		Disks:      []Disk{{ID: "image", Path: file("image", 1<<20), ReadOnly: true}, {ID: "layer", Path: file("layer", 2<<20)}},
		NIC:        &NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"},
		ConsoleLog: dir + "/console", MainLog: dir + "/main",
	}
}

func TestValidate(t *testing.T) {
	if err := goodSpec(t).Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Spec){
		"ID":            func(s *Spec) { s.ID = "a,b" },
		"RunDir":        func(s *Spec) { s.RunDir = "/" + strings.Repeat("x", 90) },
		"CPUs":          func(s *Spec) { s.CPUs = 256 },
		"MemoryBytes":   func(s *Spec) { s.MemoryBytes++ },
		"MemoryFile":    func(s *Spec) { s.MemoryBytes *= 2 }, // longer than the file
		"Kernel":        func(s *Spec) { s.Kernel = "" },
		"Initramfs":     func(s *Spec) { s.Initramfs = "relative" },
		"ConsoleLog":    func(s *Spec) { s.ConsoleLog = "/a\nb" },
		"MainLog":       func(s *Spec) { s.MainLog = "" },
		"NetNS":         func(s *Spec) { s.NetNS = "ns" },
		"Disks[0].ID":   func(s *Spec) { s.Disks[0].ID = "1st" },
		"Disks[1].ID":   func(s *Spec) { s.Disks[1].ID = "sietch-rng" },
		"Disks[1].Path": func(s *Spec) { s.Disks[1].Path = "/nonexistent" },
		"NIC.ID":        func(s *Spec) { s.NIC.ID = "layer" },
		"NIC.Tap":       func(s *Spec) { s.NIC.Tap = "sixteen-letters-" },
		"NIC.MAC":       func(s *Spec) { s.NIC.MAC = "01:00:5e:00:00:01" },
		"Jail":          func(s *Spec) { s.Jail = &Jail{UID: 0, GID: 5} },
		"Restore.Dir":   func(s *Spec) { s.Restore = &Restore{} },
	} {
		s := goodSpec(t)
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: got %v", field, err)
		}
	}
	// All of it is reported at once.
	err := Spec{}.Validate()
	for _, field := range []string{"ID", "RunDir", "CPUs", "MemoryBytes", "MemoryFile", "Kernel", "ConsoleLog", "MainLog"} {
		if !strings.Contains(err.Error(), field+": ") {
			t.Errorf("empty spec: nothing about %s in %v", field, err)
		}
	}
}

func TestShape(t *testing.T) {
	id := Identity{Driver: "d", Version: "1.2.3", Machine: "m", Accel: TCG, CPU: "c"}
	h, err := ShapeOf(goodSpec(t), id)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := h.Write(dir); err != nil {
		t.Fatal(err)
	}
	back, err := ReadShape(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, back); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
	exact := func(v string) string { return v }
	if err := h.CheckSaved(Restore{Dir: dir, Saved: id}, exact); err != nil {
		t.Errorf("the same: %v", err)
	}
	newer := id
	newer.Version = "1.2.9"
	if err := h.CheckSaved(Restore{Dir: dir, Saved: newer}, exact); !errors.Is(err, ErrIncompatible) {
		t.Errorf("another version: got %v", err)
	}
	if err := h.CheckSaved(Restore{Dir: dir, Saved: newer}, func(v string) string { return v[:3] }); err != nil {
		t.Errorf("a version that counts as the same: got %v", err)
	}
	other := h
	other.CPUs, other.NIC = 4, nil
	err = other.Load(h, exact)
	if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "CPUs") || !strings.Contains(err.Error(), "network card") {
		t.Errorf("two reasons: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, shapeName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.CheckSaved(Restore{Dir: dir, Saved: id}, exact); err == nil || errors.Is(err, ErrIncompatible) {
		t.Errorf("a damaged description: got %v, want an error of another kind", err)
	}
}
