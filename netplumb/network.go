package netplumb

import (
	"fmt"
	"net/netip"
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

// Port is one port of the host that leads to a port of the guest.
type Port struct {
	HostIP   netip.Addr // zero or 0.0.0.0: every address of the host
	Host     uint16
	Guest    uint16
	Protocol string // TCP or UDP
}

// Network is the declared network of one sandbox.
type Network struct {
	ID       string // of the sandbox: 10 characters of [a-z0-9]
	Mode     Mode
	Addr     netip.Addr   // from FreeAddr; unique on the host; not used by None
	Ports    []Port       // NAT only
	Upstream []netip.Addr // resolvers; empty: the host's
	TapOwner int          // uid that may attach to the tap; 0: root alone
}

// String is IP:HOST:GUEST/PROTOCOL as on the command line.
func (p Port) String() string {
	ip := "0.0.0.0"
	if p.HostIP.IsValid() {
		ip = p.HostIP.String()
	}
	return fmt.Sprintf("%s:%d:%d/%s", ip, p.Host, p.Guest, p.Protocol)
}
