package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// freePortTries bounds the search for a free port of the host: between finding
// one and forwarding it, somebody else may take it.
const freePortTries = 16

// AddPort forwards one more port of the host. Of a stopped sandbox it is
// forwarded from the next start on.
func (e *Local) AddPort(ctx context.Context, name string, p Port) (Port, error) {
	p, bad := checkedPort(p, true)
	if bad != "" {
		return Port{}, usage("", "ports: %s", bad)
	}
	free := p.Host == 0
	err := e.change(ctx, name, func(r *record) (err error) {
		if r.Network.Mode == NetworkNone {
			return wrongState("run it with --network nat", "sandbox %s has no network", name)
		}
		if free {
			return e.addFreePort(ctx, r, &p)
		}
		return e.addPort(ctx, r, p)
	})
	if err != nil {
		return Port{}, err
	}
	e.emit(Event{Type: "port.add", Sandbox: name, Port: &p})
	return p, nil
}

// RemovePort ends a forwarding. Connections that were made through it go on
// until either end closes them.
func (e *Local) RemovePort(ctx context.Context, name string, p Port) error {
	every := p.HostIP == ""
	p, bad := checkedPort(p, false)
	if bad != "" {
		return usage("", "ports: %s", bad)
	}
	err := e.change(ctx, name, func(r *record) error {
		i := slices.IndexFunc(r.Network.Ports, func(q Port) bool {
			return q.Host == p.Host && q.Protocol == p.Protocol && (q.HostIP == p.HostIP || anyHost(q.HostIP) && anyHost(p.HostIP))
		})
		if i < 0 && every { // the one there is, whatever its address
			same := func(q Port) bool { return q.Host == p.Host && q.Protocol == p.Protocol }
			if i = slices.IndexFunc(r.Network.Ports, same); i >= 0 && slices.ContainsFunc(r.Network.Ports[i+1:], same) {
				return usage("say which with IP:HOST", "host port %d of %s is forwarded on several addresses", p.Host, name)
			}
		}
		if i < 0 {
			return notFound("sietch port ls "+name, "host port %d/%s is not forwarded to %s", p.Host, p.Protocol, name)
		}
		p = r.Network.Ports[i]
		return e.setPorts(ctx, r, slices.Delete(slices.Clone(r.Network.Ports), i, i+1))
	})
	if err != nil {
		return err
	}
	e.emit(Event{Type: "port.remove", Sandbox: name, Port: &p})
	return nil
}

// checkedPort fills in what a port leaves out and says what is wrong with it.
func checkedPort(p Port, adds bool) (_ Port, bad string) {
	p.Protocol = orDefault(p.Protocol, "tcp")
	p.HostIP = orDefault(p.HostIP, "0.0.0.0")
	ip, err := netip.ParseAddr(p.HostIP)
	switch {
	case p.Protocol != "tcp" && p.Protocol != "udp":
		return p, fmt.Sprintf("protocol %q is neither tcp nor udp", p.Protocol)
	case err != nil || !ip.Is4():
		return p, fmt.Sprintf("address %q is not an IPv4 address", p.HostIP)
	case adds && p.Guest == 0:
		return p, "the guest's port is missing"
	case !adds && p.Host == 0:
		return p, "the host's port is missing"
	}
	return p, ""
}

func (e *Local) addFreePort(ctx context.Context, r *record, p *Port) error {
	for try := 1; ; try++ {
		host, err := freeHostPort(*p)
		if err != nil {
			return fmt.Errorf("find a free port of the host: %w", err)
		}
		p.Host = host
		err = e.addPort(ctx, r, *p)
		if err == nil || !errors.Is(err, ErrBusy) || try == freePortTries {
			return err
		}
	}
}

// firstFreePort is where forwarded ports that nobody chose begin.
const firstFreePort = 20000

// freeHostPort chooses a port below those that the host gives to whoever asks for
// any: nobody is bound to a forwarded port, so the host would give it away, and
// its new owner's connections would end up in the guest. Where there is none, the
// host chooses.
func freeHostPort(p Port) (uint16, error) {
	if end := localPorts(); end > firstFreePort {
		for range freePortTries {
			p.Host = uint16(firstFreePort + rand.IntN(end-firstFreePort))
			if c, err := bindHost(p); err == nil {
				c.Close()
				return p.Host, nil
			}
		}
	}
	p.Host = 0
	c, err := bindHost(p)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return 0, err
	}
	n, err := net.LookupPort("", port)
	return uint16(n), err
}

// localPorts is the first port that the host gives to whoever asks for any; 0: it
// is not known.
func localPorts() int {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	var first, last int
	if _, err := fmt.Sscan(string(data), &first, &last); err != nil {
		return 0
	}
	return first
}

// bound is a port of the host that this process has.
type bound struct {
	io.Closer
	address string
}

func bindHost(p Port) (bound, error) {
	address := net.JoinHostPort(p.HostIP, fmt.Sprint(p.Host))
	if p.Protocol == "udp" {
		c, err := net.ListenPacket("udp4", address)
		if err != nil {
			return bound{}, err
		}
		return bound{c, c.LocalAddr().String()}, nil
	}
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return bound{}, err
	}
	return bound{l, l.Addr().String()}, nil
}

// addPort takes a port from the host, which no other sandbox may have been
// promised.
func (e *Local) addPort(ctx context.Context, r *record, p Port) error {
	global, err := e.lockSandboxes(ctx)
	if err != nil {
		return err
	}
	defer global.unlock()
	others, err := e.records()
	if err != nil {
		return err
	}
	others = slices.DeleteFunc(others, func(o *record) bool { return o.ID == r.ID })
	wanted := record{ID: r.ID, Network: network{Ports: []Port{p}}}
	if err := portsFree(&wanted, append(others, &record{ID: r.ID, Name: r.Name, Network: r.Network})); err != nil {
		return err
	}
	if !alive(r) { // else the network looks for itself
		c, err := bindHost(p)
		if err != nil {
			return &Error{Kind: ErrBusy, Message: fmt.Sprintf("host port %d cannot be forwarded", p.Host), Err: err, Hint: "choose another"}
		}
		c.Close()
	}
	return e.setPorts(ctx, r, append(slices.Clone(r.Network.Ports), p))
}

// setPorts makes record and network agree on the forwarded ports of a locked
// sandbox. The record comes first: it is what a crash is put right by.
func (e *Local) setPorts(ctx context.Context, r *record, ports []Port) error {
	before := r.Network.Ports
	r.Network.Ports = ports
	if err := e.save(r); err != nil {
		r.Network.Ports = before
		return hostError(err)
	}
	if !alive(r) {
		return nil
	}
	err := e.plumb(ctx, r)
	if err == nil {
		return nil
	}
	r.Network.Ports = before // the network has undone what it did
	return errors.Join(networkError(err), e.save(r))
}

// plumb makes the network of a sandbox what its record says.
func (e *Local) plumb(ctx context.Context, r *record) error {
	p, err := e.plumber()
	if err != nil {
		return err
	}
	nw, err := r.netplumb()
	if err != nil {
		return err
	}
	return p.Up(ctx, nw)
}

// DialPort connects to a TCP port of the guest. The connection ends with the
// machine.
func (e *Local) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	if port == 0 || port == proto.Port {
		return nil, usage("", "port %d of a guest cannot be reached: numbers are 1 to 65535, and %d is the agent's", port, proto.Port)
	}
	g, err := e.guest(ctx, name)
	if err != nil {
		return nil, err
	}
	p, err := e.plumber()
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	dial, cancel := context.WithTimeout(ctx, e.answerTimeout())
	defer cancel()
	conn, err := p.Dial(dial, g.record.ID, "tcp4", net.JoinHostPort(proto.GuestAddr, fmt.Sprint(port)))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		err = wrongState("", "nothing listens on port %d of sandbox %s", port, name)
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = &Error{Kind: ErrState, Message: fmt.Sprintf("port %d of sandbox %s does not answer", port, name), Err: err}
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if t, ok := conn.(*net.TCPConn); ok {
		if err := t.SetKeepAlive(false); err != nil { // as for the agent, see dialWithin
			return nil, errors.Join(err, conn.Close(), g.Close())
		}
	}
	go func() {
		select {
		case <-g.machine.Done():
			conn.Close()
		case <-g.closed:
		}
	}()
	return &portConn{Conn: conn, guest: g}, nil
}

// portConn is a connection to a port of a guest.
type portConn struct {
	net.Conn
	guest *guest
	once  sync.Once
}

// CloseWrite tells the guest that nothing more comes.
func (c *portConn) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return nil
}

func (c *portConn) Close() (err error) {
	c.once.Do(func() { err = errors.Join(c.Conn.Close(), c.guest.Close()) })
	return err
}
