package cloudhypervisor

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
	// Binary is cloud-hypervisor's path or a name to look up; empty means
	// cloud-hypervisor.
	Binary string
	// TrialCache is a file that keeps what was found out about binary and host
	// until either changes or the host is started anew; empty keeps it in
	// memory only. Its directory is made when missing.
	TrialCache string
	// Logger hears about choices and oddities; nil is silent.
	Logger *slog.Logger
}

// Driver launches cloud-hypervisor machines.
type Driver struct {
	opts Options

	mu   sync.Mutex
	host *findings // found out once
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver. It runs nothing yet.
func New(o Options) *Driver {
	if o.Binary == "" {
		o.Binary = "cloud-hypervisor"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Driver{opts: o}
}

const (
	driverName = "cloud-hypervisor"
	// machineType: cloud-hypervisor has one machine model, with everything
	// virtio on a PCI bus. Its versions have no names.
	machineType = "pci"
)

// Name is "cloud-hypervisor".
func (d *Driver) Name() string { return driverName }

// Identity reports what a machine launched now would record. It says nothing
// about whether this host can run it: see Acceleration.
func (d *Driver) Identity(ctx context.Context) (vmm.Identity, error) {
	h, err := d.findHost(ctx)
	if err != nil {
		return vmm.Identity{}, err
	}
	return h.identity(), nil
}

// Loadable compares with the cloud-hypervisor and the processor of this host.
func (d *Driver) Loadable(ctx context.Context, saved vmm.Identity) error {
	h, err := d.findHost(ctx)
	if err != nil {
		return err
	}
	return vmm.CheckIdentity(saved, h.identity(), majorVersion)
}

// Acceleration reports whether machines can run here: KVM where a trial shows
// that it works, otherwise an empty Accel and the reason.
func (d *Driver) Acceleration(ctx context.Context) (vmm.Accel, string, error) {
	h, err := d.findHost(ctx)
	if err != nil {
		return "", "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !h.Tried {
		if err := d.tryKVM(ctx, h); err != nil {
			return "", "", err
		}
	}
	if h.NoKVM != "" {
		return "", h.NoKVM, nil
	}
	return vmm.KVM, "", nil
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
		return nil, fmt.Errorf("find cloud-hypervisor: %w", err)
	}
	h, err := probe(ctx, path, d.opts)
	if err != nil {
		return nil, err
	}
	d.host = h
	return h, nil
}
