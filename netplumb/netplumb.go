package netplumb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
)

// Options of a Plumber. All fields but Pool and Logger are required.
type Options struct {
	// Instance is 6 lower-case hexadecimal digits that stand for a data
	// directory. Instances on one host do not touch each other's objects.
	Instance string

	// What every guest sees, the same in every namespace.
	GuestAddr, GatewayAddr netip.Addr
	PrefixBits             int
	GuestMAC, GatewayMAC   net.HardwareAddr
	TapName                string

	// Pool is where instances take their /20 of sandbox addresses from; zero
	// means 10.213.0.0/16.
	Pool   netip.Prefix
	Logger *slog.Logger // steps at debug level; nil: nothing is logged

	kernel kernel // tests; nil: the one this runs on
}

// check reports everything that is wrong with o, one line a field.
func (o Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	net := netip.PrefixFrom(o.GatewayAddr, o.PrefixBits)
	if !o.GuestAddr.Is4() || !o.GatewayAddr.Is4() || !net.IsValid() || !net.Contains(o.GuestAddr) || o.GuestAddr == o.GatewayAddr {
		bad("guest %s and gateway %s: want two IPv4 addresses of one /%d", o.GuestAddr, o.GatewayAddr, o.PrefixBits)
	}
	if len(o.GuestMAC) != 6 || len(o.GatewayMAC) != 6 {
		bad("guest and gateway MAC: want 6 bytes each")
	}
	if o.TapName == "" || len(o.TapName) > 15 || o.TapName == uplinkName {
		bad("tap name %q: want 1 to 15 characters and not %q", o.TapName, uplinkName)
	}
	if p := o.Pool; p.IsValid() && (!p.Addr().Is4() || p.Bits() > 28) {
		bad("pool %s: want an IPv4 prefix of at most 28 bits", p)
	}
	return errors.Join(errs...)
}

// Plumber makes and removes the networks of one instance. Its methods are safe
// for concurrent use, by several processes too. Calls that concern one sandbox
// are serialized within the process; across processes the caller does that
// (whoever changes a sandbox holds its lock).
type Plumber struct {
	opts            Options
	names           names
	pool            netip.Prefix
	blockBits       int
	kernel          kernel
	hostFingerprint string
	lock            *hostLock
	ids             idLocks
	log             *slog.Logger
	closed          atomic.Bool
	readFile        func(string) ([]byte, error)
}

// New checks o and returns a Plumber. It changes nothing on the host and needs
// no privilege.
func New(o Options) (*Plumber, error) {
	n, err := newNames(o.Instance)
	if err := errors.Join(err, o.check()); err != nil {
		return nil, fmt.Errorf("check network options: %w", err)
	}
	p := &Plumber{
		opts:     o,
		names:    n,
		pool:     o.Pool.Masked(),
		kernel:   o.kernel,
		lock:     newHostLock(""),
		log:      o.Logger,
		readFile: readFile,
	}
	if !p.pool.IsValid() {
		p.pool = defaultPool
	}
	p.blockBits = max(blockBits, p.pool.Bits())
	p.hostFingerprint = hostRules(n).fingerprint()
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.kernel == nil {
		p.lock = newHostLock(lockPath)
		p.kernel = newLinux(o, n, p.lock)
	}
	return p, nil
}

// Close refuses further calls and leaves every network in place. It is
// idempotent.
func (p *Plumber) Close() error {
	if !p.closed.Swap(true) {
		p.kernel.close()
	}
	return nil
}

func (p *Plumber) usable() error {
	if p.closed.Load() {
		return ErrClosed
	}
	return nil
}

// NamespacePath is the namespace of a sandbox as a file: for setns(2), and by
// its base name for ip-netns(8). It exists from Up to Down.
func (p *Plumber) NamespacePath(id string) string { return p.names.nsPath(id) }

// Enter runs fn on a thread inside the namespace of a sandbox and returns its
// error, or ErrNotFound. A process that fn starts lives in the namespace. Go
// statements in fn leave it.
func (p *Plumber) Enter(id string, fn func() error) error {
	if err := p.usable(); err != nil {
		return err
	}
	if !validID(id) {
		return fmt.Errorf("enter namespace of %q: %w", id, ErrNotFound)
	}
	return p.kernel.enter(id, fn)
}

// Cut makes the namespace of a sandbox forget every connection. What a guest
// that was put back in time still believes open is then reset at its next
// packet instead of reaching a peer that has moved on.
func (p *Plumber) Cut(ctx context.Context, id string) error {
	if err := p.usable(); err != nil {
		return err
	}
	if !validID(id) {
		return fmt.Errorf("cut connections of %q: %w", id, ErrNotFound)
	}
	if err := p.kernel.forget(ctx, id); err != nil {
		return fmt.Errorf("cut connections of %s: %w", id, err)
	}
	return nil
}
