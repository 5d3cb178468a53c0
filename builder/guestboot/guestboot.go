package guestboot

import (
	"context"
	"errors"
	"io"
	"log/slog"
)

// Errors a caller branches on.
var (
	// ErrNotFound is returned by Find when the kernel or initramfs of that
	// digest is not in the directory.
	ErrNotFound = errors.New("guest kernel not found")
	// ErrNoApt is returned by Ensure on a host without apt-get or dpkg-deb.
	ErrNoApt = errors.New("apt-get and dpkg-deb are needed to fetch the guest kernel")
	// ErrMirror is returned by Ensure when the package mirror does not answer
	// or does not carry a kernel.
	ErrMirror = errors.New("package mirror cannot be used")
)

// Options of Ensure and Find.
type Options struct {
	// Dir is DATA/kernel; it is created with mode 0700 when missing.
	Dir string
	// InitELF is the static guest init, /init of the initramfs.
	InitELF []byte
	// Logger hears one line per long step; nil is silent.
	Logger *slog.Logger
	// Progress receives apt's own output while a kernel is fetched; nil discards it.
	Progress io.Writer
}

// Guest is a kernel with its initramfs, ready to be booted.
type Guest struct {
	Kernel    string // path of the kernel to hand to the VMM
	Initramfs string // path of the base initramfs, see WithConfig

	KernelVersion string // as uname -r gives it in the guest
	// Digests are "sha256:" and 64 hex digits over the two files.
	KernelDigest, InitramfsDigest string

	// Cmdline is the kernel command line without console= and device
	// arguments, which depend on the VMM. It is for machines on this host.
	Cmdline string
}

// Digests name the kernel and initramfs a commit was made with.
type Digests struct {
	Kernel    string // Guest.KernelDigest
	Initramfs string // Guest.InitramfsDigest; empty is the one made of Options.InitELF
}

// Ensure returns the guest to boot new sandboxes with. The first call fetches a
// kernel (network, tens of seconds at worst) and builds the initramfs; later
// calls with the same InitELF find both and take a few milliseconds.
//
// It fails with ErrNoApt or ErrMirror, whose text says what to do about it.
func Ensure(ctx context.Context, o Options) (Guest, error) {
	return ensure(ctx, o, aptSource{progress: o.Progress})
}

// Find returns the guest of an earlier commit. It touches only Options.Dir and
// fails with ErrNotFound when either file is not there.
func Find(ctx context.Context, o Options, d Digests) (Guest, error) {
	return store{o.Dir}.find(ctx, o.InitELF, d)
}

// WithConfig writes to dst the initramfs at base with one more archive behind
// it that holds config as /sietch/config.json (mode 0600). dst is replaced
// atomically and is readable by its owner only: the config may hold secrets.
func WithConfig(base, dst string, config []byte) error { return withConfig(base, dst, config) }
