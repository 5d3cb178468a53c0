// Package host says what drivers want to know about this host's processor, and
// about a binary, in the same way.
package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// HasKVM says why KVM cannot work here, as far as can be told without a trial.
// That it finds nothing proves nothing: there are hosts whose KVM makes machines
// and cannot run them.
func HasKVM() error {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	flags := cpuField(string(info), "flags")
	if !slices.ContainsFunc(strings.Fields(flags), func(f string) bool { return f == "vmx" || f == "svm" }) {
		return errors.New("the processor offers no virtualization (neither vmx nor svm in /proc/cpuinfo)")
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// CPU names this host's processor: what a KVM guest sees depends on its model
// and its features.
func CPU() (string, error) {
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

// Stamp is what findings about a binary on this host depend on.
type Stamp struct {
	Binary    string `json:"binary"`
	Device    uint64 `json:"device"`
	Inode     uint64 `json:"inode"`
	SizeBytes int64  `json:"size_bytes"`
	ModTime   int64  `json:"mod_time"`
	BootID    string `json:"boot_id"` // kernel, modules and nesting change with a reboot
}

// StampOf looks at a binary.
func StampOf(binary string) (Stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(binary, &st); err != nil {
		return Stamp{}, fmt.Errorf("look at %s: %w", binary, err)
	}
	boot, err := process.BootID()
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{binary, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), boot}, nil
}

// Remember keeps findings in a file for other processes. Its directory is made
// when missing.
func Remember(file string, findings any) error {
	data, err := json.Marshal(findings)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(file, data, 0o600)
}

// Recall reads what Remember kept.
func Recall(file string, findings any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, findings)
}
