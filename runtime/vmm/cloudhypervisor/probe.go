package cloudhypervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// host is what a cloud-hypervisor binary and this host can do.
type host struct {
	Stamp   stamp  `json:"stamp"`
	Version string `json:"version"`
	CPU     string `json:"cpu"`
	Tried   bool   `json:"tried,omitempty"`  // whether KVM was tried
	NoKVM   string `json:"no_kvm,omitempty"` // why not, when it was

	binary string
}

// stamp is what the findings depend on.
type stamp struct {
	Binary    string `json:"binary"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	SizeBytes int64  `json:"size_bytes"`
	ModTime   int64  `json:"mod_time"`
	BootID    string `json:"boot_id"` // kernel, modules and nesting change with a reboot
}

func makeStamp(binary string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(binary, &st); err != nil {
		return stamp{}, fmt.Errorf("look at %s: %w", binary, err)
	}
	boot, err := process.BootID()
	if err != nil {
		return stamp{}, err
	}
	return stamp{binary, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), boot}, nil
}

// probe finds out, or remembers, which binary this is.
func probe(ctx context.Context, binary string, o Options) (*host, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	key, err := makeStamp(binary)
	if err != nil {
		return nil, err
	}
	if o.TrialCache != "" {
		h, err := readHost(o.TrialCache)
		if err == nil && h.Stamp == key {
			return h, h.complete(binary)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Logger.Debug("what was found out about cloud-hypervisor cannot be read, finding out again", "err", err)
		}
	}
	h := &host{Stamp: key}
	if h.Version, err = askVersion(ctx, binary); err != nil {
		return nil, err
	}
	if err := h.complete(binary); err != nil {
		return nil, err
	}
	if h.CPU, err = hostCPU(); err != nil {
		return nil, err
	}
	o.Logger.Info("cloud-hypervisor found", "binary", binary, "version", h.Version)
	h.keep(o)
	return h, nil
}

// complete fills in what is not stored, and refuses what is too old.
func (h *host) complete(binary string) error {
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

func (h *host) identity() vmm.Identity {
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

func readHost(file string) (*host, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	h := new(host)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, err
	}
	return h, nil
}

// keep remembers the findings for other processes.
func (h *host) keep(o Options) {
	if o.TrialCache == "" {
		return
	}
	data, err := json.Marshal(h)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(o.TrialCache), 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(o.TrialCache, data, 0o600)
	}
	if err != nil {
		o.Logger.Debug("what was found out about cloud-hypervisor cannot be kept", "err", err)
	}
}

// hostCPU names this host's processor: what a KVM guest sees depends on its
// model and its features.
func hostCPU() (string, error) {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	info, _, _ := strings.Cut(string(data), "\n\n")
	flags := strings.Fields(cpuField(info, "flags"))
	slices.Sort(flags)
	sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
	return fmt.Sprintf("host/%s-%s-%s-%s/%s", cpuField(info, "vendor_id"), cpuField(info, "cpu family"),
		cpuField(info, "model"), cpuField(info, "stepping"), hex.EncodeToString(sum[:4])), nil
}

// cpuField is the value of the first line of /proc/cpuinfo with that name.
func cpuField(info, name string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
