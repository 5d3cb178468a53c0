package netplumb

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
)

// Options of a Plumber. Instance, the addresses and the tap name are required.
type Options struct {
	// Instance is 6 lower-case hexadecimal digits that stand for a data
	// directory. Instances on one host do not touch each other's objects.
	Instance string

	// What every guest sees, the same in every namespace.
	GuestAddr, GatewayAddr netip.Addr
	PrefixBits             int
	GuestMAC, GatewayMAC   net.HardwareAddr
	TapName                string

	// Pool is where instances take their block of sandbox addresses from; zero
	// means 10.213.0.0/16.
	Pool netip.Prefix
	// HostNS is the path of the namespace that plays the host; empty means the
	// caller's own.
	HostNS string
	Logger *slog.Logger // nil: nothing is logged
}

// Plumber makes and removes the networks of one instance. Its methods are safe
// for concurrent use, also by several processes; calls for one sandbox id are
// expected one at a time across processes (the sandbox's own lock).
type Plumber struct{}

// Note is something about this host that an operator should know.
type Note struct {
	Text string // what is so and what it means
	Fix  string // a command or setting that changes it; may be empty
}

var errUnfinished = errors.New("netplumb is under construction")

// New checks o and returns a Plumber. It changes nothing in the kernel.
func New(o Options) (*Plumber, error) { return &Plumber{}, nil }

// Close releases what the process holds and leaves every network in place.
func (p *Plumber) Close() error { return nil }

// FreeAddr returns an address for a new sandbox that is neither in taken nor in
// use on the host. It reserves nothing: Up does, and fails with ErrAddr when
// somebody was faster.
func (p *Plumber) FreeAddr(taken []netip.Addr) (netip.Addr, error) { return netip.Addr{}, errUnfinished }

// Up makes the kernel match n. It is idempotent; what it did is undone when it
// fails. Changing the ports of a running sandbox is Up again.
func (p *Plumber) Up(ctx context.Context, n Network) error { return errUnfinished }

// Down removes the network of a sandbox. It is idempotent.
func (p *Plumber) Down(ctx context.Context, id string) error { return errUnfinished }

// Sweep removes every kernel object of this instance that keep does not own and
// returns the ids of the sandboxes it removed.
func (p *Plumber) Sweep(ctx context.Context, keep []Network) (removed []string, err error) {
	return nil, errUnfinished
}

// State returns the networks of this instance as the kernel has them.
func (p *Plumber) State(ctx context.Context) ([]Network, error) { return nil, errUnfinished }

// NamespacePath is the namespace of a sandbox as a file for setns(2).
func (p *Plumber) NamespacePath(id string) string { return "" }

// Enter runs fn on a thread inside the namespace of a sandbox. A process that
// fn starts lives there.
func (p *Plumber) Enter(id string, fn func() error) error { return errUnfinished }

// Dial connects from the gateway address inside the namespace of a sandbox.
func (p *Plumber) Dial(ctx context.Context, id, network, address string) (net.Conn, error) {
	return nil, errUnfinished
}

// Cut makes a sandbox's namespace forget every connection. What a restored
// guest still believes open is then reset at its next packet.
func (p *Plumber) Cut(ctx context.Context, id string) error { return errUnfinished }

// Notes reports what on this host may stand in the way of networks.
func (p *Plumber) Notes(ctx context.Context) ([]Note, error) { return nil, errUnfinished }
