package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/cloudhypervisor"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
)

// Names of the drivers, and of the choice between them.
const (
	vmmAuto            = "auto"
	vmmQEMU            = "qemu"
	vmmCloudHypervisor = "cloud-hypervisor"
)

// monitors are the drivers of this host, made when first asked for.
type monitors struct {
	qemu            *qemu.Driver
	cloudHypervisor *cloudhypervisor.Driver
	only            vmm.Driver // a test's, in place of all others
}

// Trials are remembered for all data directories until the host is started anew.
const trialDir = "/run/sietch"

func (e *Local) qemu() *qemu.Driver {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.monitors.qemu == nil {
		e.monitors.qemu = qemu.New(qemu.Options{Logger: e.log, TrialCache: filepath.Join(trialDir, "qemu.json")})
	}
	return e.monitors.qemu
}

func (e *Local) cloudHypervisor() *cloudhypervisor.Driver {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.monitors.cloudHypervisor == nil {
		e.monitors.cloudHypervisor = cloudhypervisor.New(cloudhypervisor.Options{Binary: e.opts.CloudHypervisor,
			Logger: e.log, TrialCache: filepath.Join(trialDir, "cloud-hypervisor.json")})
	}
	return e.monitors.cloudHypervisor
}

// driver returns the driver of a machine that is there, whatever new ones get.
func (e *Local) driver(name string) (vmm.Driver, error) {
	switch {
	case e.monitors.only != nil:
		return e.monitors.only, nil
	case name == vmmQEMU:
		return e.qemu(), nil
	case name == vmmCloudHypervisor:
		return e.cloudHypervisor(), nil
	}
	return nil, &Error{Kind: ErrHost, Message: fmt.Sprintf("this version has no driver for %q", name), Hint: "use the version that made it"}
}

// choose returns the driver for a new machine: the one that was asked for; else
// the one that saved its state; else cloud-hypervisor where it is there and KVM
// works; else QEMU, which emulates where KVM does not work.
func (e *Local) choose(ctx context.Context, saved string) (vmm.Driver, error) {
	switch {
	case e.monitors.only != nil:
		return e.monitors.only, nil
	case e.opts.VMM == vmmCloudHypervisor:
		return e.needCloudHypervisor(ctx)
	case e.opts.VMM == vmmQEMU:
		return e.qemu(), nil
	case saved == vmmCloudHypervisor:
		return e.needCloudHypervisor(ctx)
	case saved != "":
		return e.driver(saved)
	}
	accel, reason, err := e.cloudHypervisor().Acceleration(ctx)
	if err == nil && accel == vmm.KVM {
		return e.cloudHypervisor(), nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e.log.Debug("machines run in QEMU", "cloud-hypervisor", reason, "err", err)
	return e.qemu(), nil
}

// loadable says why a machine cannot be restored here, before anything is given
// up or made for it.
func (e *Local) loadable(ctx context.Context, from source) error {
	if from.commit.IsZero() {
		return nil
	}
	d, err := e.choose(ctx, from.saved.Driver)
	if err != nil {
		return err
	}
	if err := d.Loadable(ctx, from.saved); err != nil {
		return launchError("commit "+from.commit.Short(), err)
	}
	return nil
}

// needCloudHypervisor says why there is no other way, and what to do about it.
func (e *Local) needCloudHypervisor(ctx context.Context) (vmm.Driver, error) {
	accel, reason, err := e.cloudHypervisor().Acceleration(ctx)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, &Error{Kind: ErrHost, Message: "cloud-hypervisor is not on PATH", Err: err,
			Hint: "put its binary there, or name it in SIETCH_CLOUD_HYPERVISOR; or use --vmm qemu"}
	case err != nil:
		return nil, fmt.Errorf("use cloud-hypervisor: %w", err)
	case accel != vmm.KVM:
		return nil, &Error{Kind: ErrHost, Message: "cloud-hypervisor needs KVM, which does not work here: " + reason, Hint: "use --vmm qemu; sietch doctor says more"}
	}
	return e.cloudHypervisor(), nil
}

// remarkEmulation tells once for each start of the host that guests are slower
// than they could be.
func (e *Local) remarkEmulation() {
	mark := filepath.Join(e.cache(), "emulation-remarked")
	if last, err := os.ReadFile(mark); err == nil && string(last) == bootID() {
		return
	}
	e.remark("this host has no working KVM: guests are emulated (TCG) and slower; sietch doctor says why")
	if err := renameio.WriteFile(mark, []byte(bootID()), 0o600); err != nil {
		e.log.Debug("note that emulation was remarked on", "err", err)
	}
}
