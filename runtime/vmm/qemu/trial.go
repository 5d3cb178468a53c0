package qemu

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
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
func (h *findings) chooseAccel(ctx context.Context, forced vmm.Accel) error {
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

func (h *findings) tryKVM(ctx context.Context) error {
	if err := host.HasKVM(); err != nil {
		return err
	}
	if err := h.trial(ctx, trialCode, "kvm", "host"); err != nil {
		return fmt.Errorf("a trial of KVM failed: %w", err)
	}
	return nil
}

// trial runs code as the firmware of a machine of the kind used here.
func (h *findings) trial(ctx context.Context, code []byte, accel, cpu string) error {
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
