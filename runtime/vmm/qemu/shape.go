package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// shape is everything about a machine that saved device state depends on.
type shape struct {
	Identity    vmm.Identity `json:"identity"`
	CPUs        int          `json:"cpus"`
	MemoryBytes int64        `json:"memory_bytes"`
	Disks       []diskShape  `json:"disks"`
	NIC         *nicShape    `json:"nic,omitempty"`
}

type diskShape struct {
	ID        string `json:"id"`
	ReadOnly  bool   `json:"read_only"`
	SizeBytes int64  `json:"size_bytes"`
}

type nicShape struct {
	ID  string `json:"id"`
	MAC string `json:"mac"`
}

func shapeOf(s vmm.Spec, id vmm.Identity) (shape, error) {
	h := shape{Identity: id, CPUs: s.CPUs, MemoryBytes: s.MemoryBytes}
	for _, d := range s.Disks {
		st, err := os.Stat(d.Path)
		if err != nil {
			return h, fmt.Errorf("look at disk %s: %w", d.ID, err)
		}
		h.Disks = append(h.Disks, diskShape{d.ID, d.ReadOnly, st.Size()})
	}
	if s.NIC != nil {
		h.NIC = &nicShape{s.NIC.ID, s.NIC.MAC}
	}
	return h, nil
}

// load says why state saved by a machine of shape saved cannot be loaded into
// one of shape h: all reasons, wrapped in vmm.ErrIncompatible.
func (h shape) load(saved shape) error {
	var reasons []error
	differ := func(what string, was, is any) {
		if was != is {
			reasons = append(reasons, fmt.Errorf("%s: saved with %v, here it is %v", what, was, is))
		}
	}
	reasons = append(reasons, identityReasons(saved.Identity, h.Identity)...)
	differ("CPUs", saved.CPUs, h.CPUs)
	differ("memory", saved.MemoryBytes, h.MemoryBytes)
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
	return fmt.Errorf("%w: %w", vmm.ErrIncompatible, errors.Join(reasons...))
}

// identityReasons compares identities. microvm is not a versioned machine, so
// its state is only trusted within one minor version of QEMU.
func identityReasons(saved, here vmm.Identity) (reasons []error) {
	saved.Version, here.Version = minor(saved.Version), minor(here.Version)
	for _, f := range []struct{ what, was, is string }{
		{"VMM", saved.Driver, here.Driver},
		{"QEMU version", saved.Version, here.Version},
		{"machine", saved.Machine, here.Machine},
		{"accelerator", string(saved.Accel), string(here.Accel)},
		{"CPU", saved.CPU, here.CPU},
	} {
		if f.was != f.is {
			reasons = append(reasons, fmt.Errorf("%s: saved with %q, here it is %q", f.what, f.was, f.is))
		}
	}
	return reasons
}

// minor cuts "7.2.22" to "7.2".
func minor(version string) string {
	dots := 0
	for i, r := range version {
		if r == '.' {
			if dots++; dots == 2 {
				return version[:i]
			}
		}
	}
	return version
}

// Names of the files in a saved state and in a run directory.
const (
	devicesName = "devices.qemu" // QEMU's own format
	shapeName   = "machine.json"
)

func (h shape) write(dir string) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(dir, shapeName), data, 0o600); err != nil {
		return fmt.Errorf("write machine description: %w", err)
	}
	return nil
}

func readShape(dir string) (h shape, err error) {
	data, err := os.ReadFile(filepath.Join(dir, shapeName))
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return h, fmt.Errorf("read machine description: %w", err)
	}
	return h, nil
}

// checkSaved reads what is in dir and compares it with the machine that is to
// load it.
func (h shape) checkSaved(r vmm.Restore) error {
	// The identity recorded with the commit is asked first: another driver's
	// state has no file that could be read here.
	if reasons := identityReasons(r.Saved, h.Identity); len(reasons) > 0 {
		return fmt.Errorf("%w: %w", vmm.ErrIncompatible, errors.Join(reasons...))
	}
	saved, err := readShape(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", vmm.ErrIncompatible, err)
	}
	if err != nil {
		return err
	}
	return h.load(saved)
}

func (h shape) clone() shape {
	h.Disks = slices.Clone(h.Disks)
	return h
}
