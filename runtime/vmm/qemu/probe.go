package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
)

// findings are what a QEMU binary and this host can do.
type findings struct {
	Stamp   stamp     `json:"stamp"`
	Version string    `json:"version"`
	Accel   vmm.Accel `json:"accel"`
	Reason  string    `json:"reason,omitempty"` // why not KVM
	CPU     string    `json:"cpu"`

	binary       string
	firmware     string
	major, minor int
}

// stamp is what the findings depend on.
type stamp struct {
	host.Stamp
	Forced vmm.Accel `json:"forced,omitempty"`
}

func makeStamp(binary string, forced vmm.Accel) (stamp, error) {
	s, err := host.StampOf(binary)
	return stamp{s, forced}, err
}

// probe finds out, or remembers, what the binary and this host can do.
func probe(ctx context.Context, binary string, o Options) (*findings, error) {
	key, err := makeStamp(binary, o.Accel)
	if err != nil {
		return nil, err
	}
	if o.TrialCache != "" {
		h := new(findings)
		err := host.Recall(o.TrialCache, h)
		if err == nil && h.Stamp == key {
			return h, h.complete(binary)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Logger.Debug("what was found out about QEMU cannot be read, finding out again", "err", err)
		}
	}
	h := &findings{Stamp: key}
	if h.Version, err = askVersion(ctx, binary); err != nil {
		return nil, err
	}
	if err := h.complete(binary); err != nil {
		return nil, err
	}
	if err := h.chooseAccel(ctx, o.Accel); err != nil {
		return nil, err
	}
	if h.CPU, err = h.guestCPU(); err != nil {
		return nil, err
	}
	o.Logger.Info("QEMU found", "binary", binary, "version", h.Version, "accel", h.Accel, "reason", h.Reason)
	if o.TrialCache != "" {
		if err := host.Remember(o.TrialCache, h); err != nil {
			o.Logger.Debug("what was found out about QEMU cannot be kept", "err", err)
		}
	}
	return h, nil
}

// complete fills in what is not stored.
func (h *findings) complete(binary string) error {
	h.binary = binary
	m := versionNumber.FindStringSubmatch(h.Version)
	if m == nil {
		return fmt.Errorf("version of QEMU: %q is not a version", h.Version)
	}
	h.major, _ = strconv.Atoi(m[1])
	h.minor, _ = strconv.Atoi(m[2])
	if !h.atLeast(oldestMajor, oldestMinor) {
		return fmt.Errorf("QEMU %s is too old, %d.%d or newer is needed", h.Version, oldestMajor, oldestMinor)
	}
	h.firmware = "qboot.rom"
	return nil
}

// The oldest QEMU with everything used here: 6.2 is Ubuntu 22.04's.
const oldestMajor, oldestMinor = 6, 2

func (h *findings) atLeast(major, minor int) bool {
	return h.major > major || h.major == major && h.minor >= minor
}

func (h *findings) identity() vmm.Identity {
	return vmm.Identity{Driver: driverName, Version: h.Version, Machine: machineType, Accel: h.Accel, CPU: h.CPU}
}

func (h *findings) accelArg() []string {
	if h.Accel == vmm.KVM {
		return []string{"kvm"}
	}
	return []string{"tcg", "tb-size=" + strconv.Itoa(translationCacheMiB)}
}

// cpu is the model with or without virtualization of its own, which a guest that
// does not ask for it is not shown: it is a large surface.
func (h *findings) cpu(nested bool) string {
	switch {
	case nested && h.Accel == vmm.KVM:
		return "host"
	case nested:
		return tcgNestedCPU
	case h.Accel == vmm.KVM:
		return "host,-svm,-vmx"
	}
	return tcgCPU + ",-svm"
}

const (
	// tcgCPU is all that TCG can emulate.
	tcgCPU = "max"
	// tcgNestedCPU is the oldest model with nested paging: its guests boot twice as
	// fast as those of max, whose page tables have a level more.
	tcgNestedCPU = "EPYC,+svm,+npt"
	// translationCacheMiB bounds TCG's cache of translated code. Only what is
	// used of it takes memory (6 MiB for an idle clone), so the bound is for busy
	// guests: it is far below QEMU's own, and above what a kernel, a libc and an
	// interpreter need.
	translationCacheMiB = 64
)

// guestCPU names the CPU a guest sees, so that saved state is not loaded where
// the guest would find another.
func (h *findings) guestCPU() (string, error) {
	if h.Accel != vmm.KVM {
		return tcgCPU, nil
	}
	return host.CPU()
}

var (
	versionLine   = regexp.MustCompile(`(?m)^QEMU emulator version (\d+\.\d+(?:\.\d+)?\S*)`)
	versionNumber = regexp.MustCompile(`^(\d+)\.(\d+)`)
)

// askTimeout bounds the runs of QEMU made to find something out.
const askTimeout = 10 * time.Second

func askVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("ask %s for its version: unknown answer %q", binary, out)
	}
	return string(m[1]), nil
}

// minorVersion cuts "7.2.22" to "7.2": microvm is not a versioned machine, so
// its state is only trusted within one minor version of QEMU.
func minorVersion(v string) string {
	if m := versionNumber.FindString(v); m != "" {
		return m
	}
	return v
}
