package cloudhypervisor

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

//go:generate sh -c "as --64 -o trial.o trial.S && ld -m elf_x86_64 -Ttext=0x100000 -e 0x100000 --oformat=binary -o trial.bin trial.o && rm trial.o"
//go:embed trial.bin
var trialCode []byte

const (
	trialAddress = 1 << 20
	trialRAM     = 32 << 20
	// trialTimeout: it takes a tenth of a second where it works at all.
	trialTimeout = 5 * time.Second
)

// trialKernel is an ELF kernel that starts code the PVH way: its note of name
// Xen and type 18 (XEN_ELFNOTE_PHYS32_ENTRY) says where.
func trialKernel(code []byte) []byte {
	const header, entries, codeAt = 64, 2 * 56, 0x1000
	le := binary.LittleEndian
	note := le.AppendUint32(nil, 4)
	note = le.AppendUint32(note, 8)
	note = le.AppendUint32(note, 18)
	note = append(note, "Xen\x00"...)
	note = le.AppendUint64(note, trialAddress)

	image := append([]byte("\x7fELF"), 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 64 bit, little endian
	image = le.AppendUint16(image, 2)                                      // executable
	image = le.AppendUint16(image, 62)                                     // x86-64
	image = le.AppendUint32(image, 1)
	image = le.AppendUint64(image, trialAddress)
	image = le.AppendUint64(image, header) // program headers follow
	image = le.AppendUint64(image, 0)
	image = le.AppendUint32(image, 0)
	for _, v := range []uint16{header, 56, 2, 64, 0, 0} {
		image = le.AppendUint16(image, v)
	}
	for _, p := range []struct {
		kind, flags          uint32
		offset, at, n, align uint64
	}{
		{1, 5, codeAt, trialAddress, uint64(len(code)), 0x1000}, // PT_LOAD
		{4, 4, header + entries, 0, uint64(len(note)), 4},       // PT_NOTE
	} {
		image = le.AppendUint32(image, p.kind)
		image = le.AppendUint32(image, p.flags)
		for _, v := range []uint64{p.offset, p.at, p.at, p.n, p.n, p.align} {
			image = le.AppendUint64(image, v)
		}
	}
	image = append(image, note...)
	image = append(image, make([]byte, codeAt-len(image))...)
	return append(image, code...)
}

// tryKVM finds out whether machines can run on this host, and remembers it.
// /dev/kvm alone proves nothing: there are hosts whose KVM makes machines and
// cannot run them.
func (d *Driver) tryKVM(ctx context.Context, h *findings) error {
	err := host.HasKVM()
	if err == nil {
		err = h.trial(ctx, trialCode)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h.Tried = true
	if err != nil {
		h.NoKVM = err.Error()
	}
	h.keep(d.opts)
	return nil
}

// trial runs code as the kernel of a machine that is like any other.
func (h *findings) trial(ctx context.Context, code []byte) (err error) {
	dir, err := os.MkdirTemp("", "sietch-trial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := vmm.Spec{
		ID: "trial", RunDir: dir, CPUs: 1, MemoryBytes: trialRAM, MemoryFile: filepath.Join(dir, "memory"),
		Kernel: filepath.Join(dir, "kernel"), ConsoleLog: filepath.Join(dir, "console.log"), MainLog: filepath.Join(dir, "main.log"),
	}
	if err := os.WriteFile(s.Kernel, trialKernel(code), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(s.MemoryFile, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(s.MemoryFile, trialRAM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, trialTimeout, fmt.Errorf("no end within %s", trialTimeout))
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("a trial of KVM failed: %w", err)
		}
	}()
	d := New(Options{})
	d.host = h
	m, err := d.launch(ctx, s)
	if err != nil {
		return err
	}
	defer m.Close()
	select {
	case <-m.Done():
		// Not m.Err: code that goes astray restarts the machine.
		return m.proc.Err()
	case <-ctx.Done():
		return errors.Join(process.WithLastWords(context.Cause(ctx), m.logPath()), m.Kill())
	}
}
