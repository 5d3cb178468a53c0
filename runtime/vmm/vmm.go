// Package vmm defines what sietch asks of a virtual machine monitor.
//
// It owns the contract ([Driver], [Machine]) and the facts that cross it; one
// subpackage per VMM implements it, and vmmtest holds the suite every one of
// them must pass. It knows nothing of images, commits, networks or agents.
//
// # Invariants
//
//   - Guest RAM is always a private mapping of Spec.MemoryFile. The VMM never
//     writes to that file. Who wants to know what the guest changed looks at
//     the VMM process's page tables (package guestmem), so no method here
//     copies RAM.
//   - Guest RAM is written by virtual CPUs and by copying only: no direct I/O
//     and no vhost into it, and no balloon device (the engine does without, see
//     docs/architecture.md). Tracking writes from outside depends on the former,
//     immutable memory files on the latter.
//   - Guest physical addresses are where [MemoryOffset] says.
//   - A machine outlives the process that launched it: the VMM runs in its own
//     session and everything needed to find it again is in [Handle].
//   - Sockets and other run-time files are made fresh in Spec.RunDir for each
//     launch.
package vmm

import (
	"context"
	"errors"
)

// Errors a caller branches on.
var (
	// ErrGone is returned for a machine whose process has ended.
	ErrGone = errors.New("virtual machine is gone")
	// ErrState is returned when an operation does not fit the machine's state,
	// such as SaveDevices on a running machine.
	ErrState = errors.New("operation does not fit the machine's state")
	// ErrIncompatible is returned by Launch when the device state was saved by
	// a VMM, version or machine shape that this driver cannot load.
	ErrIncompatible = errors.New("saved machine state is not compatible")
)

// Accel names how guest instructions are executed.
type Accel string

const (
	KVM Accel = "kvm" // hardware virtualization
	TCG Accel = "tcg" // QEMU's translator
)

// Identity says which VMM build and machine model made a device state. A
// device state is loaded only where Identity is equal field by field, except
// Version, which the driver compares by its own rules.
type Identity struct {
	Driver  string `json:"driver" cbor:"driver"`   // "qemu", "cloud-hypervisor"
	Version string `json:"version" cbor:"version"` // as the VMM reports it, e.g. "7.2.19"
	Machine string `json:"machine" cbor:"machine"` // machine model, e.g. "microvm"
	Accel   Accel  `json:"accel" cbor:"accel"`
	CPU     string `json:"cpu" cbor:"cpu"` // CPU model seen by the guest
}

// Spec describes one machine to launch. All paths are absolute.
type Spec struct {
	// ID is the sandbox id; it names nothing but log lines and process titles.
	ID string
	// RunDir exists and is private to this launch; sockets go here. The whole
	// path is short enough for a unix socket (under 90 bytes). The VMM's
	// environment names it (process.Environ), so that a sweep finds a process
	// whose launcher was killed before it could write a handle.
	RunDir string

	CPUs        int
	MemoryBytes int64
	// Nested shows the guest the CPU's virtualization, for machines of its own.
	Nested bool
	// MemoryFile backs guest RAM, mapped privately and opened read-only where
	// the VMM can. At least MemoryBytes long (sparse is fine).
	MemoryFile string

	Kernel    string // bzImage
	Initramfs string
	Cmdline   string // without console= and device arguments: the driver adds them

	// Disks in guest order (vda, vdb, …); raw files.
	Disks []Disk
	// NIC is nil for a machine with no network card at all.
	NIC *NIC

	// ConsoleLog receives the serial console (kernel and guest init),
	// MainLog the output of the main process (first virtio console port).
	// Both are appended to, created when missing.
	ConsoleLog, MainLog string

	// NetNS is the path of the network namespace the VMM process runs in;
	// empty means the caller's.
	NetNS string

	// Jail, when set, takes privileges from the VMM process.
	Jail *Jail

	// Restore, when set, loads device state instead of booting. The devices
	// described above must be those of the saved machine.
	Restore *Restore
}

// Disk is one raw block device.
type Disk struct {
	ID       string // explicit and stable: keys into saved device state
	Path     string
	ReadOnly bool
}

// NIC is one virtio network card on an existing tap.
type NIC struct {
	ID  string
	Tap string // name in Spec.NetNS
	MAC string
}

// Jail says what the VMM process is reduced to before the guest runs. Files
// named in Spec are opened with the caller's rights, so they need not be
// accessible to UID.
type Jail struct {
	UID, GID int // both above 0
	// Cgroups are directories of control groups that the process is in before
	// the guest runs: one of cgroup v2, or one for each v1 hierarchy. None
	// means the caller's.
	Cgroups []string
}

// Restore points at a saved device state.
type Restore struct {
	// Dir holds what SaveDevices wrote. It is read during Launch only.
	Dir string
	// Saved is the identity recorded with it.
	Saved Identity
}

// Driver launches machines of one VMM.
type Driver interface {
	// Name is "qemu" or "cloud-hypervisor".
	Name() string
	// Identity reports what a machine launched now would record. It may run the
	// VMM once to ask its version and caches the answer.
	Identity(ctx context.Context) (Identity, error)
	// Launch starts a machine. ctx bounds the launch, not the machine's life.
	// A booted machine is running when Launch returns; a restored one is
	// paused at the instant it was saved, to be let go by Resume. On error no
	// process is left, and the error ends with the VMM's own last words.
	Launch(ctx context.Context, s Spec) (Machine, error)
	// Loadable says why device state saved by such a VMM cannot be loaded here
	// (ErrIncompatible), before anything has been given up for it. Launch looks
	// at the rest of the machine's shape.
	Loadable(ctx context.Context, saved Identity) error
	// Attach adopts a machine launched by this or another process. It returns
	// ErrGone when the process of the handle has ended (pid reuse is noticed).
	Attach(ctx context.Context, h Handle) (Machine, error)
}

// Handle is everything needed to find a running machine again, as stored in a
// sandbox's record.
type Handle struct {
	Driver    string `json:"driver"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat, clock ticks since boot
	BootID    string `json:"boot_id"`    // /proc/sys/kernel/random/boot_id
	RunDir    string `json:"run_dir"`
	// MemoryFile is the path to look for in /proc/PID/maps.
	MemoryFile string `json:"memory_file"`
}

// Machine is one virtual machine. Methods are safe for concurrent use; Pause,
// Resume and SaveDevices are serialized by the machine.
type Machine interface {
	Handle() Handle
	// Identity of the running machine.
	Identity() Identity
	// Pause stops all virtual CPUs and drains disks: when it returns, every
	// write the guest was told is done is in the disk files. Idempotent.
	Pause(ctx context.Context) error
	// Resume lets the CPUs run. Idempotent.
	Resume(ctx context.Context) error
	// Paused reports whether the machine is paused, asking the VMM.
	Paused(ctx context.Context) (bool, error)
	// SaveDevices writes the state of CPUs and devices, not RAM, into dir,
	// which exists and is empty. Paused machines only (ErrState).
	SaveDevices(ctx context.Context, dir string) error
	// Shutdown asks the guest to power off and waits for the end of the
	// process; when ctx ends first, it becomes Kill and returns ctx's error.
	Shutdown(ctx context.Context) error
	// Kill ends the process at once and waits until it is reaped. Idempotent.
	Kill() error
	// Done is closed after the process has ended.
	Done() <-chan struct{}
	// Err says why it ended; meaningful after Done, nil for a clean end.
	Err() error
	// Close releases this process's hold (sockets, descriptors) and leaves the
	// machine running.
	Close() error
}
