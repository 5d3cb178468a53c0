package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/guestinit/embedded"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// DefaultDataDir is used when neither flag nor SIETCH_DATA_DIR says otherwise.
const DefaultDataDir = "/var/lib/sietch"

// Options of [Open]; the zero value works.
type Options struct {
	DataDir string // empty: DefaultDataDir
	VMM     string // auto (also ""), cloud-hypervisor, qemu
	// CloudHypervisor is its binary, a path or a name to look up; empty:
	// cloud-hypervisor.
	CloudHypervisor string
	Logger          *slog.Logger
	// Remark receives one-line notes for the user (such as "no KVM, using TCG").
	Remark func(string)
	// LockWait is how long a command waits for another one that holds the store
	// or the sandbox; 0: one minute.
	LockWait time.Duration
	// BootTimeout bounds the wait for a guest to answer; 0: two minutes.
	BootTimeout time.Duration
	// Overcommit is how many times the host's memory running sandboxes may have
	// together; 0: DefaultOvercommit.
	Overcommit float64
	// CacheLimitBytes bounds the hot dumps; 0: half of what is free.
	CacheLimitBytes int64
	// KeepStore is how long the store stays open after a verb, for the next one
	// of this process: for those that live long. Other processes get it at once
	// all the same. 0: not at all.
	KeepStore time.Duration
}

// BuildEngineCommand is the name of the hidden sub-command that runs
// BuildEngineMain.
const BuildEngineCommand = builder.EngineCommand

// BuildEngineMain is the hidden sub-command by which this binary hosts BuildKit
// in a process of its own. args are those after the sub-command's name.
func BuildEngineMain(ctx context.Context, args []string) error {
	return builder.EngineMain(ctx, args)
}

// Local is the Engine on a data directory of this host.
type Local struct {
	layout
	opts Options
	log  *slog.Logger
	kept *branches.Keeper

	mu       sync.Mutex
	builder  *builder.Builder
	net      networks
	monitors monitors
	lines    lines
	parts    func(ctx context.Context, r *record, boots bool) (builder.Image, guestboot.Guest, error)
	remarks  map[string]bool
}

var _ Engine = (*Local)(nil)

// networks is what the engine asks of netplumb; tests have another.
type networks interface {
	FreeAddr(taken []netip.Addr) (netip.Addr, error)
	Up(ctx context.Context, n netplumb.Network) error
	Down(ctx context.Context, id string) error
	Cut(ctx context.Context, id string) error
	Sweep(ctx context.Context, keep []netplumb.Network) (removed []string, err error)
	NamespacePath(id string) string
	Dial(ctx context.Context, id, network, address string) (net.Conn, error)
	Notes(ctx context.Context) ([]netplumb.Note, error)
	Close() error
}

// Open returns the engine on a data directory of this host. It is cheap and
// takes no lock: verbs that need the store open it, see Options.KeepStore.
func Open(ctx context.Context, o Options) (*Local, error) {
	if o.DataDir == "" {
		o.DataDir = DefaultDataDir
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, usage("", "data directory %s: %v", o.DataDir, err)
	}
	switch o.VMM {
	case "", vmmAuto, vmmQEMU, vmmCloudHypervisor:
	default:
		return nil, usage("use auto, qemu or cloud-hypervisor", "VMM %q is not known", o.VMM)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Remark == nil {
		o.Remark = func(string) {}
	}
	if o.LockWait == 0 {
		o.LockWait = time.Minute
	}
	if o.Overcommit == 0 {
		o.Overcommit = DefaultOvercommit
	}
	if math.IsNaN(o.Overcommit) || o.Overcommit < 0 {
		return nil, usage("", "overcommit ratio %g is not above 0", o.Overcommit)
	}
	if o.BootTimeout == 0 {
		o.BootTimeout = 2 * time.Minute
	}
	e := &Local{layout: layout{data: dir}, opts: o, log: o.Logger, remarks: map[string]bool{}}
	e.kept = branches.NewKeeper(branches.KeeperOptions{
		Store: branches.Options{Dir: e.store(), Wait: o.LockWait, Logger: o.Logger},
		Idle:  o.KeepStore,
	})
	e.parts = e.findParts
	return e, nil
}

// Close releases what this process holds; sandboxes go on running.
func (e *Local) Close() error {
	errs := []error{e.lines.close(), e.kept.Close()}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.builder != nil {
		errs = append(errs, e.builder.Close())
		e.builder = nil
	}
	if e.net != nil {
		errs = append(errs, e.net.Close())
		e.net = nil
	}
	return errors.Join(errs...)
}

// remark tells the user something once.
func (e *Local) remark(s string) {
	e.mu.Lock()
	seen := e.remarks[s]
	e.remarks[s] = true
	e.mu.Unlock()
	if !seen {
		e.opts.Remark(s)
	}
}

// prepare is what every verb that changes something begins with.
func (e *Local) prepare() error {
	if os.Geteuid() != 0 {
		return &Error{Kind: ErrHost, Message: "virtual machines, networks and file systems need root", Hint: "run it with sudo"}
	}
	if err := e.create(); err != nil {
		return hostError(err)
	}
	return nil
}

// readable is what verbs begin with that only look. A data directory that does
// not exist is an empty one.
func (e *Local) readable() error {
	f, err := os.Open(e.data)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return &Error{Kind: ErrHost, Message: "data directory " + e.data + " belongs to another user", Hint: "run it with sudo, or choose another with --data-dir"}
	}
	return fmt.Errorf("open data directory: %w", err)
}

// hostError gives an error of the operating system its next step.
func hostError(err error) error {
	switch {
	case isFull(err):
		return &Error{Kind: ErrHost, Message: "no space left", Err: err, Hint: "free some with: sietch gc, or sietch rm"}
	case errors.Is(err, syscall.EROFS):
		return &Error{Kind: ErrHost, Message: "file system is read-only", Err: err}
	}
	return err
}

// isFull says whether an error comes from a full disk, or a full share of it.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func (e *Local) imageStore() (*builder.Builder, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.builder == nil {
		b, err := builder.Open(builder.Options{Dir: e.data, Logger: e.log})
		if err != nil {
			return nil, err
		}
		e.builder = b
	}
	return e.builder, nil
}

const tapName = "tap0"

func (e *Local) plumber() (networks, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.net == nil {
		guestMAC, err := net.ParseMAC(proto.GuestMAC)
		if err != nil {
			return nil, err
		}
		gatewayMAC, err := net.ParseMAC(proto.GatewayMAC)
		if err != nil {
			return nil, err
		}
		p, err := netplumb.New(netplumb.Options{
			Instance:    e.instance(),
			GuestAddr:   netip.MustParseAddr(proto.GuestAddr),
			GatewayAddr: netip.MustParseAddr(proto.GatewayAddr),
			PrefixBits:  proto.PrefixBits,
			GuestMAC:    guestMAC,
			GatewayMAC:  gatewayMAC,
			TapName:     tapName,
			Logger:      e.log,
		})
		if err != nil {
			return nil, fmt.Errorf("set up network: %w", err)
		}
		e.net = p
	}
	return e.net, nil
}

func (e *Local) guestOptions() (guestboot.Options, error) {
	elf, err := embedded.Binary()
	if err != nil {
		return guestboot.Options{}, err
	}
	return guestboot.Options{Dir: e.kernel(), InitELF: elf, Logger: e.log}, nil
}

// withStore runs fn with the store open and to itself. The wait for other verbs
// and other processes is bounded.
func (e *Local) withStore(ctx context.Context, fn func(*branches.Store) error) error {
	return storeError(e.kept.Use(ctx, func(s *branches.Store) error { return storeError(fn(s)) }))
}

// storeError gives errors of the store the kind and hint that callers branch on.
func storeError(err error) error {
	var known *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, branches.ErrLocked):
		return &Error{Kind: ErrBusy, Message: "the data directory is in use", Err: err, Hint: "wait for the other command, or use another --data-dir"}
	case errors.Is(err, branches.ErrRefMoved):
		return &Error{Kind: ErrBusy, Message: "the ref was moved by another command", Err: err, Hint: "look with: sietch branch, and try again"}
	case errors.Is(err, branches.ErrNotFound):
		return &Error{Kind: ErrNotFound, Message: "no such commit or ref", Err: err, Hint: "sietch log and sietch branch list what there is"}
	case errors.Is(err, branches.ErrAmbiguous):
		return &Error{Kind: ErrUsage, Message: "the id prefix fits several commits", Err: err, Hint: "give more digits"}
	case errors.Is(err, branches.ErrInvalidRef):
		return &Error{Kind: ErrUsage, Message: "not a valid ref", Err: err, Hint: "a ref is a branch, tag, sandbox, id, REF~n, REF^n or NAME@{n}"}
	case errors.Is(err, branches.ErrCorrupt):
		return &Error{Kind: ErrCorrupt, Message: "stored data is damaged", Err: err, Hint: "sietch fsck says how much"}
	}
	return hostError(err)
}

// dial returns a client of the guest's agent.
func (e *Local) dial(id string) (*agent.Client, error) { return e.dialWithin(id, 0) }

// dialWithin bounds each attempt to connect, where limit is not 0.
func (e *Local) dialWithin(id string, limit time.Duration) (*agent.Client, error) {
	p, err := e.plumber()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(proto.GuestAddr, fmt.Sprint(proto.Port))
	return agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		if limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		conn, err := p.Dial(ctx, id, "tcp4", address)
		if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
			// A paused guest answers no probe for as long as it is paused. That its
			// machine ended is noticed otherwise, see attend.
			err = tcp.SetKeepAlive(false)
		}
		return conn, err
	}}), nil
}
