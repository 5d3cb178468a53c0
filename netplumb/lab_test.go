package netplumb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The lab around the scratch host:
//
//	sandbox namespace ── bridge ── scratch host ── eth0 ── internet
//	   tap0                        192.0.2.2                192.0.2.1
//	    │ frames copied                                     198.51.100.1 :80
//	guest namespace                                         198.51.100.53 :53
//	   eth0 169.254.77.2                                    169.254.169.254 :80
//
// A guest is a namespace with a tap of its own; frames are copied between the
// two taps, so the sandbox's tap is used as a VMM would.
var (
	hostAddr     = netip.MustParseAddr("192.0.2.2")
	internetAddr = netip.MustParseAddr("192.0.2.1")
	webAddr      = netip.MustParseAddr("198.51.100.1")
	dnsAddr      = netip.MustParseAddr("198.51.100.53")
	deadDNSAddr  = netip.MustParseAddr("198.51.100.54")
	metadataAddr = netip.MustParseAddr("169.254.169.254")

	internet *lab
)

// lab is a namespace of the tests.
type lab struct{ fd int }

// newLab makes a namespace and runs setup inside it.
func newLab(setup func() error) (*lab, error) {
	l := &lab{fd: -1}
	err := onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		if l.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if err := upLo(); err != nil {
			return err
		}
		return setup()
	})
	return l, err
}

func (l *lab) run(fn func() error) error {
	return onThread(func() error { return unix.Setns(l.fd, unix.CLONE_NEWNET) }, fn)
}

func (l *lab) close() { unix.Close(l.fd) }

func upLo() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func addAddr(iface, prefix string) error {
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add %s to %s: %w", prefix, iface, err)
	}
	return netlink.LinkSetUp(l)
}

func addDefaultRoute(via netip.Addr) error {
	return netlink.RouteAdd(&netlink.Route{Gw: via.AsSlice()})
}

// noRateLimit lets a namespace refuse datagrams as often as the tests ask.
func noRateLimit() error { return writeSysctl("/proc/sys/net/ipv4/icmp_ratelimit", "0") }

// makeInternet connects the scratch host to something that can stand for the
// rest of the world.
func makeInternet() error {
	if err := errors.Join(upLo(), noRateLimit()); err != nil {
		return err
	}
	var err error
	internet, err = newLab(func() error { return nil })
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(internet.fd)}); err != nil {
		return err
	}
	if err := addAddr("eth0", hostAddr.String()+"/24"); err != nil {
		return err
	}
	err = internet.run(func() error {
		for _, a := range []struct{ iface, prefix string }{
			{"eth0", internetAddr.String() + "/24"}, {"lo", webAddr.String() + "/32"},
			{"lo", dnsAddr.String() + "/32"}, {"lo", metadataAddr.String() + "/32"},
		} {
			if err := addAddr(a.iface, a.prefix); err != nil {
				return err
			}
		}
		if err := noRateLimit(); err != nil {
			return err
		}
		for _, a := range []netip.Addr{webAddr, metadataAddr} {
			l, err := net.Listen("tcp4", netip.AddrPortFrom(a, 80).String())
			if err != nil {
				return err
			}
			go serveEcho(l)
		}
		c, err := net.ListenPacket("udp4", netip.AddrPortFrom(dnsAddr, 53).String())
		if err != nil {
			return err
		}
		go servePackets(c)
		l, err := net.Listen("tcp4", netip.AddrPortFrom(dnsAddr, 53).String())
		if err != nil {
			return err
		}
		go serveEcho(l)
		return nil
	})
	if err != nil {
		return err
	}
	return addDefaultRoute(internetAddr)
}

// serveEcho greets with the address of the peer and then echoes lines.
func serveEcho(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintln(c, host)
			io.Copy(c, c)
		}()
	}
}

// servePackets answers every packet with the address it came from.
func servePackets(c net.PacketConn) {
	b := make([]byte, 2048)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		host, _, _ := net.SplitHostPort(from.String())
		c.WriteTo([]byte(host), from)
	}
}

// guest is a machine on the tap of a sandbox.
type guest struct {
	*lab
	taps    [2]*os.File
	copying sync.WaitGroup
}

func attach(t testing.TB, p *Plumber, id string) *guest {
	t.Helper()
	g := &guest{}
	if err := p.Enter(id, func() (err error) {
		g.taps[0], err = openTap(p.opts.TapName)
		return errors.Join(err, noRateLimit())
	}); err != nil {
		t.Fatalf("attach to tap of %s: %v", id, err)
	}
	var err error
	g.lab, err = newLab(func() (err error) {
		if g.taps[1], err = openTap("eth0"); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(l, p.opts.GuestMAC); err != nil {
			return err
		}
		if err := addAddr("eth0", netip.PrefixFrom(p.opts.GuestAddr, p.opts.PrefixBits).String()); err != nil {
			return err
		}
		return addDefaultRoute(p.opts.GatewayAddr)
	})
	if err != nil {
		t.Fatalf("make guest of %s: %v", id, err)
	}
	g.pump(t, p, id)
	t.Cleanup(g.detach)
	return g
}

// pump copies frames once both taps take them.
func (g *guest) pump(t testing.TB, p *Plumber, id string) {
	t.Helper()
	for i := range g.taps {
		g.copying.Go(func() { copyFrames(g.taps[i], g.taps[1-i]) })
	}
	wait := func(iface string) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return awaitRunning(t.Context(), fd, iface)
		}
	}
	if err := errors.Join(p.Enter(id, wait(p.opts.TapName)), g.run(wait("eth0"))); err != nil {
		t.Fatal(err)
	}
}

// move takes the guest from one sandbox's tap to another's, as a clone finds
// itself: with the memory of its original and another network around it.
func (g *guest) move(t testing.TB, p *Plumber, id string) {
	t.Helper()
	g.taps[1].SetReadDeadline(time.Now())
	g.taps[0].Close()
	g.copying.Wait()
	g.taps[1].SetReadDeadline(time.Time{})
	if err := p.Enter(id, func() (err error) {
		g.taps[0], err = openTap(p.opts.TapName)
		return err
	}); err != nil {
		t.Fatalf("attach to tap of %s: %v", id, err)
	}
	g.pump(t, p, id)
}

func (g *guest) detach() {
	if g.taps[0] == nil {
		return
	}
	for _, f := range g.taps {
		f.Close()
	}
	g.taps[0] = nil
	g.close()
}

func copyFrames(dst, src *os.File) {
	b := make([]byte, 1<<16)
	for {
		n, err := src.Read(b)
		if err != nil {
			return
		}
		if _, err := dst.Write(b[:n]); err != nil && errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// listen serves echoes inside a namespace until the test ends.
func (l *lab) listen(t testing.TB, address string) {
	t.Helper()
	err := l.run(func() error { return listenHere(t, address) })
	if err != nil {
		t.Fatal(err)
	}
}

func listenHere(t testing.TB, address string) error {
	li, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	pc, err := net.ListenPacket("udp4", address)
	if err != nil {
		li.Close()
		return err
	}
	go serveEcho(li)
	go servePackets(pc)
	t.Cleanup(func() { li.Close(); pc.Close() })
	return nil
}

// Outcomes of an attempt to connect.
const (
	refused = "refused" // answered, by a reset or an ICMP message
	silent  = "silent"  // nothing came back in time
)

const patience = 700 * time.Millisecond

// tcp connects from inside the namespace and returns the greeting, which is the
// address the peer saw, or what went wrong.
func (l *lab) tcp(address string) string {
	var got string
	l.run(func() error { got = tcpHere(address); return nil })
	return got
}

func tcpHere(address string) string {
	c, err := (&net.Dialer{Timeout: patience}).Dial("tcp4", address)
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return outcome(err)
	}
	return strings.TrimSpace(line)
}

// udp asks from inside the namespace and returns the answer or what went wrong.
func (l *lab) udp(address string) string {
	var got string
	l.run(func() error { got = udpHere(address); return nil })
	return got
}

func udpHere(address string) string {
	c, err := net.Dial("udp4", address)
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("question")); err != nil {
		return outcome(err)
	}
	b := make([]byte, 2048)
	n, err := c.Read(b)
	if err != nil {
		return outcome(err)
	}
	return string(b[:n])
}

func outcome(err error) string {
	var ne net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return refused
	case errors.As(err, &ne) && ne.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return silent
	}
	return err.Error()
}

// connectLab joins a namespace to the scratch host by a veth.
func connectLab(t testing.TB, l *lab, iface, hostPrefix string, inside netip.Addr) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = iface
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(l.fd)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	if err := addAddr(iface, hostPrefix); err != nil {
		t.Fatal(err)
	}
	if err := l.run(func() error {
		if err := addAddr("eth0", inside.String()+"/24"); err != nil {
			return err
		}
		return addDefaultRoute(netip.MustParsePrefix(hostPrefix).Addr())
	}); err != nil {
		t.Fatal(err)
	}
}

func addRoute(dst string, via netip.Addr) error {
	_, n, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{Dst: n, Gw: via.AsSlice()})
}

func addrPort(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// up declares a network with a fresh address and makes it.
func up(t testing.TB, p *Plumber, id string, ports ...Port) Network {
	t.Helper()
	a, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Network{ID: id, Mode: NAT, Addr: a, Ports: ports, Upstream: []netip.Addr{dnsAddr}}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return n
}

func init() { runtime.LockOSThread() } // keep the main thread, which is the process for /proc/self, out of other namespaces

// fillBridge takes every port of a bridge that is left.
func fillBridge(t testing.TB, name string) {
	t.Helper()
	br, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	// The far ends are in a namespace: it takes all of them along at once.
	far, err := newLab(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		far.close()
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if there, err := linkExists("fill0"); !there || err != nil {
				return
			}
		}
	})
	for i := range 1100 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("fill%d", i)
		l := &netlink.Veth{LinkAttrs: attrs, PeerName: attrs.Name, PeerNamespace: netlink.NsFd(far.fd)}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetMaster(l, br); errors.Is(err, unix.EXFULL) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the bridge takes any number of ports")
}
