package vmm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Shape is everything about a machine that saved device state depends on.
type Shape struct {
	Identity    Identity    `json:"identity"`
	CPUs        int         `json:"cpus"`
	MemoryBytes int64       `json:"memory_bytes"`
	Nested      bool        `json:"nested,omitempty"`
	Disks       []DiskShape `json:"disks"`
	NIC         *NICShape   `json:"nic,omitempty"`
}

type DiskShape struct {
	ID        string `json:"id"`
	ReadOnly  bool   `json:"read_only"`
	SizeBytes int64  `json:"size_bytes"`
}

type NICShape struct {
	ID  string `json:"id"`
	MAC string `json:"mac"`
}

// ShapeOf describes the machine that s would make.
func ShapeOf(s Spec, id Identity) (Shape, error) {
	h := Shape{Identity: id, CPUs: s.CPUs, MemoryBytes: s.MemoryBytes, Nested: s.Nested}
	for _, d := range s.Disks {
		st, err := os.Stat(d.Path)
		if err != nil {
			return h, fmt.Errorf("look at disk %s: %w", d.ID, err)
		}
		h.Disks = append(h.Disks, DiskShape{d.ID, d.ReadOnly, st.Size()})
	}
	if s.NIC != nil {
		h.NIC = &NICShape{s.NIC.ID, s.NIC.MAC}
	}
	return h, nil
}

// NewShape describes the machine that s is about to make, in its run directory
// too. It refuses one that cannot load the state it is to go on from; version is
// as for Load.
func NewShape(s Spec, id Identity, version func(string) string) (Shape, error) {
	h, err := ShapeOf(s, id)
	if err != nil {
		return h, err
	}
	if s.Restore != nil {
		if err := h.CheckSaved(*s.Restore, version); err != nil {
			return h, err
		}
	}
	return h, h.Write(s.RunDir)
}

// Load says why state saved by a machine of shape saved cannot be loaded into
// one of shape h: all reasons, wrapped in ErrIncompatible. Versions are compared
// after version has cut off what does not matter to the driver.
func (h Shape) Load(saved Shape, version func(string) string) error {
	reasons := identityReasons(saved.Identity, h.Identity, version)
	differ := func(what string, was, is any) {
		if was != is {
			reasons = append(reasons, fmt.Errorf("%s: saved with %v, here it is %v", what, was, is))
		}
	}
	differ("CPUs", saved.CPUs, h.CPUs)
	differ("memory", saved.MemoryBytes, h.MemoryBytes)
	differ("nested virtualization", saved.Nested, h.Nested)
	differ("number of disks", len(saved.Disks), len(h.Disks))
	for i := range min(len(saved.Disks), len(h.Disks)) {
		differ(fmt.Sprintf("disk %d", i), saved.Disks[i], h.Disks[i])
	}
	switch {
	case (saved.NIC == nil) != (h.NIC == nil):
		differ("network card", saved.NIC != nil, h.NIC != nil)
	case saved.NIC != nil:
		differ("network card", *saved.NIC, *h.NIC)
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrIncompatible, errors.Join(reasons...))
}

// CheckIdentity says why state saved by one VMM cannot be loaded by another:
// all reasons, wrapped in ErrIncompatible. version is as for Load.
func CheckIdentity(saved, here Identity, version func(string) string) error {
	if reasons := identityReasons(saved, here, version); len(reasons) > 0 {
		return fmt.Errorf("%w: %w", ErrIncompatible, errors.Join(reasons...))
	}
	return nil
}

func identityReasons(saved, here Identity, version func(string) string) (reasons []error) {
	same := func(v string) string { return v }
	for _, f := range []struct {
		what, was, is string
		part          func(string) string // what has to be equal
	}{
		{"VMM", saved.Driver, here.Driver, same},
		{"version", saved.Version, here.Version, version},
		{"machine", saved.Machine, here.Machine, same},
		{"accelerator", string(saved.Accel), string(here.Accel), same},
		{"CPU", saved.CPU, here.CPU, same},
	} {
		if f.part(f.was) != f.part(f.is) {
			reasons = append(reasons, fmt.Errorf("%s: saved with %q, here it is %q", f.what, f.was, f.is))
		}
	}
	return reasons
}

// shapeName is the file of a Shape, beside saved device state and in a run
// directory.
const shapeName = "machine.json"

// Write stores h in dir. It neither replaces nor syncs: dir is new and nobody
// reads it before its maker is done, and when it holds saved state it is written
// while the guest stands still. Durability is up to who keeps dir.
func (h Shape) Write(dir string) error {
	data, err := json.Marshal(h)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, shapeName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write machine description: %w", err)
	}
	return nil
}

// ReadShape reads what Write stored.
func ReadShape(dir string) (h Shape, err error) {
	data, err := os.ReadFile(filepath.Join(dir, shapeName))
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return h, fmt.Errorf("read machine description: %w", err)
	}
	return h, nil
}

// CheckSaved reads the shape beside saved state and says whether h can load it.
func (h Shape) CheckSaved(r Restore, version func(string) string) error {
	// The identity recorded with the commit is asked first: another driver's
	// state has no file that could be read here.
	if err := CheckIdentity(r.Saved, h.Identity, version); err != nil {
		return err
	}
	saved, err := ReadShape(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrIncompatible, err)
	}
	if err != nil {
		return err
	}
	return h.Load(saved, version)
}
