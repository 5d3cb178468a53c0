package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
)

// findings are what a cloud-hypervisor binary and this host can do.
type findings struct {
	Stamp   host.Stamp `json:"stamp"`
	Version string     `json:"version"`
	CPU     string     `json:"cpu"`
	Tried   bool       `json:"tried,omitempty"`  // whether KVM was tried
	NoKVM   string     `json:"no_kvm,omitempty"` // why not, when it was

	binary string
}

// probe finds out, or remembers, which binary this is.
func probe(ctx context.Context, binary string, o Options) (*findings, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	key, err := host.StampOf(binary)
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
			o.Logger.Debug("what was found out about cloud-hypervisor cannot be read, finding out again", "err", err)
		}
	}
	h := &findings{Stamp: key}
	if h.Version, err = askVersion(ctx, binary); err != nil {
		return nil, err
	}
	if err := h.complete(binary); err != nil {
		return nil, err
	}
	if h.CPU, err = host.CPU(); err != nil {
		return nil, err
	}
	o.Logger.Info("cloud-hypervisor found", "binary", binary, "version", h.Version)
	h.keep(o)
	return h, nil
}

// complete fills in what is not stored, and refuses what is too old.
func (h *findings) complete(binary string) error {
	h.binary = binary
	m := versionNumber.FindStringSubmatch(h.Version)
	if m == nil {
		return fmt.Errorf("version of cloud-hypervisor: %q is not a version", h.Version)
	}
	if major, _ := strconv.Atoi(m[1]); major < oldestMajor {
		return fmt.Errorf("cloud-hypervisor %s at %s is too old: its saved state cannot be loaded lazily; install v%d.0 or newer",
			h.Version, binary, oldestMajor)
	}
	return nil
}

// oldestMajor is the first version that the way states are saved and loaded
// here was found to work with.
const oldestMajor = 53

func (h *findings) identity() vmm.Identity {
	return vmm.Identity{Driver: driverName, Version: h.Version, Machine: machineType, Accel: vmm.KVM, CPU: h.CPU}
}

var (
	versionLine   = regexp.MustCompile(`(?m)^cloud-hypervisor v(\d+\.\d+\S*)`)
	versionNumber = regexp.MustCompile(`^(\d+)\.\d+`)
)

// askTimeout bounds the run of the binary that asks for its version.
const askTimeout = 10 * time.Second

func askVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if ctx.Err() != nil {
		err = context.Cause(ctx) // rather than the signal it makes of that
	}
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("ask %s for its version: unknown answer %q", binary, out)
	}
	return string(m[1]), nil
}

// majorVersion cuts "53.0.1" to "53": saved states do not cross major versions,
// within one they are promised to load.
func majorVersion(v string) string {
	if m := versionNumber.FindStringSubmatch(v); m != nil {
		return m[1]
	}
	return v
}

// keep remembers the findings for other processes.
func (h *findings) keep(o Options) {
	if o.TrialCache == "" {
		return
	}
	if err := host.Remember(o.TrialCache, h); err != nil {
		o.Logger.Debug("what was found out about cloud-hypervisor cannot be kept", "err", err)
	}
}
