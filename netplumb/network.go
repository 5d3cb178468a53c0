package netplumb

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Mode says what a sandbox can reach.
type Mode string

const (
	// NAT gives the guest outgoing connections, DNS and forwarded ports.
	NAT Mode = "nat"
	// None leaves the guest alone with its gateway, through which the agent is
	// reached; nothing leaves the namespace and nothing else enters it.
	None Mode = "none"
)

// Protocols of a forwarded port.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Port is one port of the host that leads to a port of the guest. It works
// from outside, from the host's own addresses and from 127.0.0.1.
type Port struct {
	HostIP   netip.Addr // zero or 0.0.0.0: every IPv4 address of the host
	Host     uint16
	Guest    uint16
	Protocol string // TCP or UDP
}

// Network is the declared network of one sandbox.
type Network struct {
	ID       string // of the sandbox: 10 characters of [a-z0-9]
	Mode     Mode
	Addr     netip.Addr   // from FreeAddr; unique on the host; None has no use for it
	Ports    []Port       // NAT only
	Upstream []netip.Addr // resolvers; empty: the host's
	TapOwner int          // uid that may attach to the tap; 0: root alone
}

// String is IP:HOST:GUEST/PROTOCOL as on the command line.
func (p Port) String() string {
	return fmt.Sprintf("%s:%d:%d/%s", p.hostIP(), p.Host, p.Guest, p.Protocol)
}

func (p Port) hostIP() netip.Addr {
	if p.HostIP.IsValid() {
		return p.HostIP
	}
	return netip.IPv4Unspecified()
}

// overlaps tells whether p and q could not both be forwarded, as two sockets
// could not both be bound.
func (p Port) overlaps(q Port) bool {
	if p.Protocol != q.Protocol || p.Host != q.Host {
		return false
	}
	a, b := p.hostIP(), q.hostIP()
	return a == b || a.IsUnspecified() || b.IsUnspecified()
}

// same tells whether p and q forward the same thing.
func (p Port) same(q Port) bool { return comparePorts(p, q) == 0 }

func comparePorts(a, b Port) int {
	return cmp.Or(a.hostIP().Compare(b.hostIP()), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Guest, b.Guest))
}

// check reports everything that is wrong with n, one line a field.
func (n Network) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !validID(n.ID) {
		bad("id %q: want %d characters of a-z and 0-9", n.ID, idLen)
	}
	if n.TapOwner < 0 {
		bad("tap owner %d: want a uid", n.TapOwner)
	}
	switch n.Mode {
	case None:
		if len(n.Ports) > 0 {
			bad("ports: a sandbox without a network cannot have any")
		}
	case NAT:
		if !n.Addr.Is4() {
			bad("address %q: want an IPv4 address", n.Addr)
		}
	default:
		bad("mode %q: want %s or %s", n.Mode, NAT, None)
	}
	for i, p := range n.Ports {
		switch {
		case p.Host == 0 || p.Guest == 0:
			bad("port %s: 0 is not a port", p)
		case p.Protocol != TCP && p.Protocol != UDP:
			bad("port %s: protocol is neither %s nor %s", p, TCP, UDP)
		case !p.hostIP().Is4():
			bad("port %s: only IPv4 addresses of the host are forwarded", p)
		}
		if j := slices.IndexFunc(n.Ports[:i], p.overlaps); j >= 0 {
			bad("port %s: overlaps %s", p, n.Ports[j])
		}
	}
	for _, u := range n.Upstream {
		if !u.Is4() || u.IsUnspecified() || u.IsLoopback() || u.IsMulticast() {
			bad("resolver %s: want an IPv4 address that can be routed to", u)
		}
	}
	return errors.Join(errs...)
}
