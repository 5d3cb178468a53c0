package qemu

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// Options of a Driver; the zero value works.
type Options struct {
	// Binary is QEMU's path or a name to look up; empty means qemu-system-x86_64.
	Binary string
	// Accel forces the accelerator; empty means KVM where a trial shows that it
	// works, else TCG.
	Accel vmm.Accel
	// TrialCache is a file that keeps what was found out about binary and host
	// until either changes or the host is started anew; empty keeps it in
	// memory only. Its directory is made when missing.
	TrialCache string
	// Logger hears about choices and oddities; nil is silent.
	Logger *slog.Logger
}

// Driver launches QEMU machines.
type Driver struct {
	opts Options

	mu   sync.Mutex
	host *findings // found out once
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver. It runs nothing yet.
func New(o Options) *Driver {
	if o.Binary == "" {
		o.Binary = "qemu-system-x86_64"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Driver{opts: o}
}

// Name is "qemu".
func (d *Driver) Name() string { return driverName }

// devicesName is QEMU's file in a saved state.
const devicesName = "devices.qemu"

const (
	driverName  = "qemu"
	machineType = "microvm"
)

// Identity reports what a machine launched now would record.
func (d *Driver) Identity(ctx context.Context) (vmm.Identity, error) {
	h, err := d.findHost(ctx)
	if err != nil {
		return vmm.Identity{}, err
	}
	return h.identity(), nil
}

// Loadable compares with the QEMU and the processor of this host.
func (d *Driver) Loadable(ctx context.Context, saved vmm.Identity) error {
	h, err := d.findHost(ctx)
	if err != nil {
		return err
	}
	return vmm.CheckIdentity(saved, h.identity(), minorVersion)
}

// Acceleration reports which accelerator machines get and, for TCG, why it is
// not KVM.
func (d *Driver) Acceleration(ctx context.Context) (vmm.Accel, string, error) {
	h, err := d.findHost(ctx)
	if err != nil {
		return "", "", err
	}
	return h.Accel, h.Reason, nil
}

// findHost finds out about binary and host, once for each driver.
func (d *Driver) findHost(ctx context.Context) (*findings, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.host != nil {
		return d.host, nil
	}
	path, err := exec.LookPath(d.opts.Binary)
	if err != nil {
		return nil, fmt.Errorf("find QEMU: %w", err)
	}
	h, err := probe(ctx, path, d.opts)
	if err != nil {
		return nil, err
	}
	d.host = h
	return h, nil
}
