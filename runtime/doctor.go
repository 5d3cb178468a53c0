package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

const (
	statusOK      = "ok"
	statusNote    = "note"    // works, could be better
	statusMissing = "missing" // something does not work without it
)

const qemuProgram = "qemu-system-x86_64"

// Doctor looks at the host: what is missing, and the command that mends it.
func (e *Local) Doctor(ctx context.Context) (DoctorReport, error) {
	d := &doctor{engine: e}
	d.rights()
	d.tools(e.withoutQEMU(ctx))
	d.accelerator(ctx)
	d.jail()
	d.dataDir()
	d.network(ctx)
	d.memory()
	out := DoctorReport{OK: true, Checks: d.checks}
	for _, c := range d.checks {
		if c.Status == statusMissing {
			out.OK = false
		}
	}
	return out, ctx.Err()
}

type doctor struct {
	engine *Local
	checks []DoctorCheck
}

func (d *doctor) say(name, status, fix, format string, args ...any) {
	d.checks = append(d.checks, DoctorCheck{Name: name, Status: status, Detail: fmt.Sprintf(format, args...), Fix: fix})
}

func (d *doctor) rights() {
	if os.Geteuid() == 0 {
		d.say("rights", statusOK, "", "running as root")
		return
	}
	d.say("rights", statusMissing, "sudo sietch …", "root is needed for machines, networks and builds")
}

// withoutQEMU reports whether new machines do not need QEMU.
func (e *Local) withoutQEMU(ctx context.Context) bool {
	chosen, err := e.choose(ctx, "")
	return err == nil && chosen.Name() == vmmCloudHypervisor
}

// tools are programs of the host, with the package that brings each.
func (d *doctor) tools(withoutQEMU bool) {
	for _, t := range []struct{ program, pkg, use string }{
		{qemuProgram, "qemu-system-x86", "runs the machines"},
		{"runc", "runc", "runs the steps of a build"},
		{"mkfs.ext4", "e2fsprogs", "makes file systems"},
		{"debugfs", "e2fsprogs", "makes images the same for the same input"},
		{"apt-get", "apt", "fetches the guest kernel"},
		{"dpkg-deb", "dpkg", "unpacks the guest kernel"},
		{"mmdebstrap", "mmdebstrap", "makes base images where no registry is reached"},
	} {
		path, err := exec.LookPath(t.program)
		switch {
		case err == nil:
			d.say(t.program, statusOK, "", "%s", path)
		case t.program == qemuProgram && withoutQEMU:
			d.say(t.program, statusNote, "apt-get install -y "+t.pkg, "not on PATH; cloud-hypervisor runs the machines, but none that QEMU saved")
		case t.program == "mmdebstrap":
			d.say(t.program, statusNote, "apt-get install -y "+t.pkg, "not on PATH; %s", t.use)
		default:
			d.say(t.program, statusMissing, "apt-get install -y "+t.pkg, "not on PATH; %s", t.use)
		}
	}
}

// accelerator explains each step of the choice between the VMMs.
func (d *doctor) accelerator(ctx context.Context) {
	e := d.engine
	kvm := false
	accel, reason, err := e.qemu().Acceleration(ctx)
	switch {
	case errors.Is(err, exec.ErrNotFound): // said above
	case err != nil:
		d.say("qemu", statusMissing, "", "%v", err)
	case accel == vmm.KVM:
		kvm = true
		d.say("kvm", statusOK, "", "runs a stock guest in QEMU")
	default:
		d.say("kvm", statusNote, "on a virtual host, ask for nested virtualization", "guests are emulated (TCG), which is slower: %s", reason)
	}
	accel, reason, err = e.cloudHypervisor().Acceleration(ctx)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		d.say("cloud-hypervisor", statusNote, "put its binary on PATH or name it in SIETCH_CLOUD_HYPERVISOR", "not found; QEMU runs the machines")
	case err != nil:
		d.say("cloud-hypervisor", statusNote, "", "%v", err)
	case accel == vmm.KVM:
		kvm = true
		d.say("cloud-hypervisor", statusOK, "", "runs a stock guest on KVM")
	default:
		d.say("cloud-hypervisor", statusNote, "", "needs KVM: %s", reason)
	}
	if !kvm && !exists("/dev/kvm") {
		d.say("/dev/kvm", statusNote, "modprobe kvm_amd or kvm_intel", "not there")
	}
	chosen, err := e.choose(ctx, "")
	if err != nil {
		d.say("vmm", statusMissing, Hint(err), "%v", err)
		return
	}
	id, err := chosen.Identity(ctx)
	if err != nil {
		return // said above
	}
	d.say("vmm", statusOK, "", "new machines get %s %s, machine %s, on %s, CPU %s", id.Driver, id.Version, id.Machine, id.Accel, id.CPU)
}

// jail says what of the jail this host does not offer. Machines run without it.
func (d *doctor) jail() {
	switch version := process.Landlock(); {
	case version == 0:
		d.say("landlock", statusNote, "on kernels that have it, add landlock to lsm= on the kernel's command line",
			"the kernel offers none: a VMM is held by its user, its root directory and its system call filter alone")
	case version < landlockWhole:
		d.say("landlock", statusNote, "", "version %d restricts a VMM's files; TCP takes version 4, devices 5, signals and abstract sockets 6", version)
	default:
		d.say("landlock", statusOK, "", "version %d restricts a VMM's files, devices, TCP, signals and abstract sockets", version)
	}
	if os.Geteuid() != 0 {
		return
	}
	name := d.engine.cgroup("doctor-" + strconv.Itoa(os.Getpid()))
	g, err := jail.MakeGroup(name, jail.Limits{CPUs: 1, MemoryBytes: 1 << 20})
	switch err = errors.Join(err, jail.RemoveGroup(name)); {
	case errors.Is(err, jail.ErrDenied):
		d.say("control groups", statusNote, "", "machines run without limits on what they take of this host: %v", err)
		return
	case err != nil:
		d.say("control groups", statusMissing, "", "%v", err)
		return
	case len(g.Unlimited) > 0:
		d.say("control groups", statusNote, "", "machines run without a limit of %s: this host has no such controller", strings.Join(g.Unlimited, ", "))
		return
	}
	d.say("control groups", statusOK, "", "CPU time, memory and number of threads of a VMM are bounded")
}

// landlockWhole is the version of Landlock with all that is asked of it.
const landlockWhole = 6

func (d *doctor) dataDir() {
	e := d.engine
	dir := e.data
	for !exists(dir) {
		dir = filepath.Dir(dir)
	}
	free, err := freeBytes(dir)
	if err != nil {
		d.say("data directory", statusMissing, "", "%s: %v", e.data, err)
		return
	}
	status := statusOK
	if free < 4<<30 {
		status = statusNote
	}
	d.say("space", status, "", "%d GiB free for %s", free>>30, e.data)
	if os.Geteuid() != 0 || !exists(e.data) {
		return
	}
	if info, err := os.Stat(e.data); err == nil && info.Mode().Perm()&0o077 != 0 {
		d.say("data directory", statusMissing, "chmod 700 "+e.data, "others may look into %s, which holds guests' memory", e.data)
	}
	switch err := e.tryReflink(); {
	case err == nil:
		d.say("reflink", statusOK, "", "disks are cloned without copying")
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTTY):
		d.say("reflink", statusNote, "", "the file system of %s cannot clone files: a fork and a commit copy what is allocated on the sandbox's disk; XFS and btrfs do not", e.data)
	default:
		d.say("reflink", statusNote, "", "could not be tried: %v", err)
	}
}

func (e *Local) tryReflink() error {
	tmp, err := e.newScratch("doctor")
	if err != nil {
		return err
	}
	defer tmp.remove()
	if err := os.WriteFile(tmp.path("a"), make([]byte, 4096), 0o600); err != nil {
		return err
	}
	return reflink(tmp.path("a"), tmp.path("b"), 0o600)
}

func (d *doctor) network(ctx context.Context) {
	if !exists("/dev/net/tun") {
		d.say("tun", statusMissing, "modprobe tun", "/dev/net/tun is not there")
	}
	if os.Geteuid() != 0 {
		return
	}
	p, err := d.engine.plumber()
	if err != nil {
		d.say("network", statusMissing, "", "%v", err)
		return
	}
	notes, err := p.Notes(ctx)
	if err != nil {
		d.say("network", statusMissing, "", "%v", err)
		return
	}
	for _, n := range notes {
		d.say("network", statusNote, n.Fix, "%s", n.Text)
	}
	if len(notes) == 0 {
		d.say("network", statusOK, "", "namespaces, NAT and name resolution")
	}
}

// memory says how changed pages are found.
func (d *doctor) memory() {
	if kernelAtLeast(6, 7) {
		d.say("dirty pages", statusOK, "", "PAGEMAP_SCAN with write protection: a commit's pause does not depend on how much changed")
		return
	}
	d.say("dirty pages", statusNote, "", "kernels from 6.7 on find changed pages faster; this one is read page by page")
}

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return a > major || a == major && b >= minor
}
