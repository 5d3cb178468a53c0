package netplumb

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to address, an IP address and a port, from inside the
// namespace of a sandbox. The guest sees the gateway as the other end. The
// connection is an ordinary one afterwards and may be used from anywhere.
//
// A tap takes no packets before a VMM has attached to it. Dial waits for that,
// as long as ctx allows: the alternative is a lost first packet, which TCP
// repeats only a second later.
func (p *Plumber) Dial(ctx context.Context, id, network, address string) (net.Conn, error) {
	// A name would be resolved on threads outside the namespace.
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial from %s: %w", id, err)
	}
	d := net.Dialer{
		ControlContext: func(ctx context.Context, _, _ string, c syscall.RawConn) error {
			err := fmt.Errorf("socket is closed")
			c.Control(func(fd uintptr) { err = awaitRunning(ctx, int(fd), p.opts.TapName) })
			return err
		},
	}
	var conn net.Conn
	err := p.Enter(id, func() (err error) {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// awaitRunning waits until an interface in the namespace of socket fd takes
// packets. Unlike a netlink question, this one does not queue behind everybody
// who is changing an interface anywhere on the host.
func awaitRunning(ctx context.Context, fd int, iface string) error {
	req, err := unix.NewIfreq(iface)
	if err != nil {
		return err
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return fmt.Errorf("look at %s: %w", iface, err)
		}
		if req.Uint16()&unix.IFF_RUNNING != 0 {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("wait for a guest on %s: %w", iface, context.Cause(ctx))
		}
	}
}
