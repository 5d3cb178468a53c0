package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

//go:generate sh -c "as --64 -o trial.o trial.S && ld -m elf_x86_64 -Ttext=0 -e 0 --oformat=binary -o trial.bin trial.o && rm trial.o"
//go:embed trial.bin
var trialCode []byte

const (
	// trialExit is what QEMU exits with when the trial firmware came through.
	trialExit = 2*0x2a + 1
	// trialTimeout: it takes a tenth of a second where it works at all.
	trialTimeout = 5 * time.Second
)

// trialFirmware is an image that ends at 4 GiB and starts at its last 16 bytes.
func trialFirmware(code []byte) []byte {
	image := make([]byte, 64<<10)
	copy(image, code)
	copy(image[0xfff0:], []byte{0xe9, 0x0d, 0x00}) // jmp to offset 0
	return image
}

// chooseAccel takes KVM where a trial shows that it works. /dev/kvm alone proves
// nothing: there are hosts whose KVM makes machines and cannot run them.
func (h *host) chooseAccel(ctx context.Context, forced vmm.Accel) error {
	switch forced {
	case vmm.TCG:
		h.Accel, h.Reason = vmm.TCG, "TCG was asked for"
		return nil
	case vmm.KVM, "":
	default:
		return fmt.Errorf("accelerator %q is not known", forced)
	}
	err := h.tryKVM(ctx)
	switch {
	case err == nil:
		h.Accel = vmm.KVM
	case ctx.Err() != nil:
		return ctx.Err()
	case forced == vmm.KVM:
		return fmt.Errorf("KVM was asked for: %w", err)
	default:
		h.Accel, h.Reason = vmm.TCG, err.Error()
	}
	return nil
}

func (h *host) tryKVM(ctx context.Context) error {
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
	f.Close()
	if err := h.trial(ctx, trialCode, "kvm", "host"); err != nil {
		return fmt.Errorf("a trial of KVM failed: %w", err)
	}
	return nil
}

// trial runs code as the firmware of a machine of the kind used here.
func (h *host) trial(ctx context.Context, code []byte, accel, cpu string) error {
	dir, err := os.MkdirTemp("", "sietch-trial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	image := filepath.Join(dir, "firmware")
	if err := os.WriteFile(image, trialFirmware(code), 0o600); err != nil {
		return err
	}
	tctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	var words bytes.Buffer
	cmd := exec.CommandContext(tctx, h.binary, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "microvm,acpi=off,x-option-roms=off", "-m", "64M", "-accel", accel, "-cpu", cpu,
		"-bios", image, "-device", "isa-debug-exit,iobase=0xf4,iosize=1")
	cmd.Stdout, cmd.Stderr = &words, &words
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == trialExit {
		return nil
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case tctx.Err() != nil:
		err = fmt.Errorf("no answer within %s", trialTimeout)
	case err == nil:
		err = errors.New("the guest's code went astray")
	}
	if w := strings.TrimSpace(words.String()); w != "" {
		err = fmt.Errorf("%w: %s", err, w)
	}
	return err
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
