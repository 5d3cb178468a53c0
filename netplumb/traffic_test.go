package netplumb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a guest reaches and what it does not.
func TestReach(t *testing.T) {
	p := newReal(t, "a00001")
	other := newReal(t, "a00002")
	a := up(t, p, "aaaaaaaaaa")
	b := up(t, p, "bbbbbbbbbb", Port{Host: 8080, Guest: 7, Protocol: TCP})
	c := up(t, other, "cccccccccc")
	ga, gb, gc := attach(t, p, a.ID), attach(t, p, b.ID), attach(t, other, c.ID)
	for _, g := range []*guest{ga, gb, gc} {
		g.listen(t, "0.0.0.0:7")
	}
	for _, address := range []string{"0.0.0.0:22", "127.0.0.1:7000"} {
		if err := listenHere(t, address); err != nil {
			t.Fatal(err)
		}
	}
	bridge, _ := p.blockOf(a.Addr)
	otherBridge, _ := p.blockOf(c.Addr)

	for _, tt := range []struct {
		name, address, tcp, udp string
	}{
		{"web server", addrPort(webAddr, 80), hostAddr.String(), refused},
		{"resolver behind the gateway", addrPort(p.opts.GatewayAddr, 53), hostAddr.String(), hostAddr.String()},
		{"resolver itself", addrPort(dnsAddr, 53), hostAddr.String(), hostAddr.String()},
		{"guest of the same instance", addrPort(b.Addr, 7), refused, refused},
		{"guest of another instance", addrPort(c.Addr, 7), refused, refused},
		{"itself by its outer address", addrPort(a.Addr, 7), refused, refused},
		{"unused address of the block", addrPort(lastAddr(bridge).Prev(), 7), refused, refused},
		{"host", addrPort(hostAddr, 22), refused, refused},
		{"host, resolver's port", addrPort(hostAddr, 53), refused, refused},
		{"forwarded port of another guest", addrPort(hostAddr, 8080), refused, refused},
		{"bridge", addrPort(bridge.Addr(), 22), refused, refused},
		{"other instance's bridge", addrPort(otherBridge.Addr(), 22), refused, refused},
		{"gateway", addrPort(p.opts.GatewayAddr, 22), refused, refused},
		{"cloud metadata", addrPort(metadataAddr, 80), refused, refused},
		{"resolver's port of the metadata address", addrPort(metadataAddr, 53), refused, refused},
		{"multicast", "224.0.0.1:7", "network is unreachable", silent},
	} {
		if got := ga.tcp(tt.address); got != tt.tcp && tt.name != "multicast" {
			t.Errorf("tcp to %s (%s): got %s, want %s", tt.name, tt.address, got, tt.tcp)
		}
		if got := ga.udp(tt.address); got != tt.udp {
			t.Errorf("udp to %s (%s): got %s, want %s", tt.name, tt.address, got, tt.udp)
		}
	}
	// The metadata address does answer the host, so the refusal above is ours.
	if got := tcpHere(addrPort(metadataAddr, 80)); got == refused || got == silent {
		t.Errorf("metadata server is down: %s", got)
	}
	// 127.0.0.1 of the guest is the guest, whatever the bridge routes.
	ns := wireIn(t, func(fn func() error) error { return p.Enter(a.ID, fn) }, uplinkName)
	lo := wireIn(t, func(fn func() error) error { return fn() }, "lo")
	ns.send(t, p.names.bridgeMAC(), packet{src: netip.AddrPortFrom(a.Addr, 999), dst: netip.MustParseAddrPort("127.0.0.1:7000"), tcpFlags: 0})
	if lo.sees(100*time.Millisecond, toPort(7000)) {
		t.Error("a packet from the bridge reached 127.0.0.1 of the host")
	}
}

// The host may also be the resolver, and be asked for nothing else.
func TestHostAsResolver(t *testing.T) {
	p := newReal(t, "a00001")
	if err := listenHere(t, addrPort(hostAddr, 53)); err != nil {
		t.Fatal(err)
	}
	if err := listenHere(t, addrPort(hostAddr, 54)); err != nil {
		t.Fatal(err)
	}
	a, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: a, Upstream: []netip.Addr{hostAddr}}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	g := attach(t, p, n.ID)
	dns := addrPort(p.opts.GatewayAddr, 53)
	if got := g.udp(dns); got != a.String() {
		t.Errorf("udp: got %s, want %s", got, a)
	}
	if got := g.tcp(dns); got != a.String() {
		t.Errorf("tcp: got %s, want %s", got, a)
	}
	if got := g.udp(addrPort(hostAddr, 54)); got != refused {
		t.Errorf("another port of the resolver: got %s", got)
	}
}

// A resolver that does not answer is asked every other time only.
func TestResolversTakeTurns(t *testing.T) {
	p := newReal(t, "a00001")
	a, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: a, Upstream: []netip.Addr{deadDNSAddr, dnsAddr}}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	g := attach(t, p, n.ID)
	answers := 0
	for range 4 {
		if g.udp(addrPort(p.opts.GatewayAddr, 53)) == hostAddr.String() {
			answers++
		}
	}
	if answers != 2 {
		t.Errorf("got %d answers to 4 questions with one of two resolvers dead, want 2", answers)
	}
}

func TestForwardedPorts(t *testing.T) {
	p := newReal(t, "a00001")
	local := netip.MustParseAddr("127.0.0.1")
	a := up(t, p, "aaaaaaaaaa",
		Port{Host: 8080, Guest: 7, Protocol: TCP},
		Port{Host: 8081, Guest: 7, Protocol: UDP},
		Port{HostIP: local, Host: 8082, Guest: 7, Protocol: TCP},
		Port{HostIP: hostAddr, Host: 8083, Guest: 7, Protocol: TCP},
		Port{HostIP: local, Host: 8084, Guest: 7, Protocol: UDP},
	)
	g := attach(t, p, a.ID)
	g.listen(t, "0.0.0.0:7")
	bridge, _ := p.blockOf(a.Addr)
	br := bridge.Addr().String()
	host := func(address string, udp bool) string {
		if udp {
			return udpHere(address)
		}
		return tcpHere(address)
	}
	outside := func(address string, udp bool) (got string) {
		internet.run(func() error { got = host(address, udp); return nil })
		return got
	}
	for _, tt := range []struct {
		from string
		try  func(string, bool) string
		to   string
		udp  bool
		want string
	}{
		// The guest sees who is asking, or the bridge in place of the host.
		{"host", host, "127.0.0.1:8080", false, br},
		{"host", host, "127.0.0.2:8080", false, br},
		{"host", host, addrPort(hostAddr, 8080), false, br},
		{"host", host, addrPort(bridge.Addr(), 8080), false, br},
		{"outside", outside, addrPort(hostAddr, 8080), false, internetAddr.String()},
		{"host", host, "127.0.0.1:8081", true, br},
		{"outside", outside, addrPort(hostAddr, 8081), true, internetAddr.String()},
		{"host", host, "127.0.0.1:8082", false, br},
		{"host", host, addrPort(hostAddr, 8082), false, refused},
		{"outside", outside, addrPort(hostAddr, 8082), false, refused},
		{"host", host, "127.0.0.1:8083", false, refused},
		{"outside", outside, addrPort(hostAddr, 8083), false, internetAddr.String()},
		// Not forwarded: another protocol, another port.
		{"host", host, "127.0.0.1:8080", true, refused},
		{"host", host, "127.0.0.1:7", false, refused},
		// The sandbox's own address is for the host alone.
		{"host", host, addrPort(a.Addr, 7), false, br},
		{"host", host, addrPort(a.Addr, 7), true, br},
	} {
		if got := tt.try(tt.to, tt.udp); got != tt.want {
			t.Errorf("from %s to %s (udp %t): got %s, want %s", tt.from, tt.to, tt.udp, got, tt.want)
		}
	}

	// A neighbour that routes to the sandbox by way of the host, and one that
	// sends to 127.0.0.1, get nowhere.
	tap := wireIn(t, g.run, "eth0")
	out := wireIn(t, internet.run, "eth0")
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	src := netip.AddrPortFrom(internetAddr, 4444)
	out.send(t, eth0.HardwareAddr, packet{src: src, dst: netip.AddrPortFrom(local, 8084)})
	out.send(t, eth0.HardwareAddr, packet{src: src, dst: netip.AddrPortFrom(a.Addr, 7)})
	if tap.sees(200*time.Millisecond, toPort(7)) {
		t.Error("a packet of a neighbour reached the guest")
	}
	out.send(t, eth0.HardwareAddr, packet{src: src, dst: netip.AddrPortFrom(hostAddr, 8081)})
	if !tap.sees(time.Second, toPort(7)) {
		t.Error("an ordinary packet sent the same way did not arrive: the test above says nothing")
	}
}

// A flow that is being tracked ends with its port.
func TestRemovedPortEndsFlow(t *testing.T) {
	p := newReal(t, "a00001")
	n := up(t, p, "aaaaaaaaaa", Port{Host: 8081, Guest: 7, Protocol: UDP})
	g := attach(t, p, n.ID)
	g.listen(t, "0.0.0.0:7")
	c, err := net.Dial("udp4", "127.0.0.1:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func() error {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 100))
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	n.Ports = nil
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil {
		t.Error("the flow went on after its port was removed")
	}
}

func TestPortConflicts(t *testing.T) {
	p := newReal(t, "a00001")
	other := newReal(t, "a00002")
	if err := listenHere(t, "0.0.0.0:9090"); err != nil { // both protocols
		t.Fatal(err)
	}
	if err := listenHere(t, "127.0.0.1:9091"); err != nil {
		t.Fatal(err)
	}
	up(t, other, "cccccccccc", Port{Host: 9092, Guest: 1, Protocol: TCP})
	before := worldText(t, p)
	a, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}}
	for _, port := range []Port{
		{Host: 9090, Guest: 1, Protocol: TCP},
		{Host: 9090, Guest: 1, Protocol: UDP},
		{Host: 9091, Guest: 1, Protocol: TCP}, // wildcard over a listener on one address
		{HostIP: hostAddr, Host: 9090, Guest: 1, Protocol: TCP},
		{Host: 9092, Guest: 1, Protocol: TCP},
		{HostIP: hostAddr, Host: 9092, Guest: 1, Protocol: TCP},
		{HostIP: netip.MustParseAddr("203.0.113.1"), Host: 9093, Guest: 1, Protocol: TCP},
	} {
		err := p.Up(t.Context(), with(n, port))
		var pe *PortError
		if !errors.As(err, &pe) || pe.Reason == "" || !pe.Port.same(port) {
			t.Errorf("port %s: got %v, want a port error", port, err)
		}
		if got := worldText(t, p); got != before {
			t.Fatalf("port %s: refused, but left\n%s", port, got)
		}
	}
	free := Port{HostIP: hostAddr, Host: 9091, Guest: 1, Protocol: TCP}
	if err := p.Up(t.Context(), with(n, free)); err != nil {
		t.Errorf("port on another address than the listener's: %v", err)
	}
	// What a removed sandbox had is free again.
	if err := other.Down(t.Context(), "cccccccccc"); err != nil {
		t.Fatal(err)
	}
	if err := p.Up(t.Context(), with(n, Port{Host: 9092, Guest: 1, Protocol: TCP})); err != nil {
		t.Errorf("port of a removed sandbox: %v", err)
	}
}

func TestSpoofedSources(t *testing.T) {
	p := newReal(t, "a00001")
	a, b := up(t, p, "aaaaaaaaaa"), up(t, p, "bbbbbbbbbb")
	g := attach(t, p, a.ID)
	out := wireIn(t, internet.run, "eth0")
	br := wireIn(t, func(fn func() error) error { return fn() }, p.names.bridge())

	// The guest itself, on its card.
	tap := wireIn(t, g.run, "eth0")
	dst := netip.AddrPortFrom(webAddr, 4321)
	tap.send(t, p.opts.GatewayMAC, packet{src: netip.MustParseAddrPort("10.9.9.9:1"), dst: dst})
	tap.send(t, p.opts.GatewayMAC, packet{src: netip.AddrPortFrom(p.opts.GatewayAddr, 1), dst: dst})
	// Somebody who got as far as the namespace, on the veth.
	up := wireIn(t, func(fn func() error) error { return p.Enter(a.ID, fn) }, uplinkName)
	for _, src := range []netip.Addr{b.Addr, hostAddr, netip.MustParseAddr("10.9.9.9"), p.opts.GuestAddr} {
		up.send(t, p.names.bridgeMAC(), packet{src: netip.AddrPortFrom(src, 1), dst: dst})
	}
	if out.sees(200*time.Millisecond, toPort(4321)) || br.sees(10*time.Millisecond, toPort(4321)) {
		t.Error("a packet with a forged source left")
	}
	up.send(t, p.names.bridgeMAC(), packet{src: netip.AddrPortFrom(a.Addr, 1), dst: dst})
	if !out.sees(time.Second, toPort(4321)) {
		t.Error("an honest packet sent the same way did not arrive: the test above says nothing")
	}
	// On the tap an outsider cannot pass for the gateway either, whom the agent
	// trusts.
	br.send(t, uplinkMAC(a.Addr), packet{src: netip.AddrPortFrom(p.opts.GatewayAddr, 1), dst: netip.AddrPortFrom(a.Addr, 4321)})
	br.send(t, uplinkMAC(a.Addr), packet{src: netip.AddrPortFrom(hostAddr, 1), dst: netip.AddrPortFrom(p.opts.GuestAddr, 4321)})
	if tap.sees(200*time.Millisecond, toPort(4321)) {
		t.Error("a packet from the host's side passed for the gateway's")
	}
}

// A guest that is copied while it has connections finds them broken, not
// hanging.
func TestCloneConnectionsBreak(t *testing.T) {
	p := newReal(t, "a00001")
	a, b := up(t, p, "aaaaaaaaaa"), up(t, p, "bbbbbbbbbb")
	g := attach(t, p, a.ID)
	var out net.Conn
	if err := g.run(func() (err error) { out, err = net.Dial("tcp4", addrPort(webAddr, 80)); return err }); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var l net.Listener
	if err := g.run(func() (err error) { l, err = net.Listen("tcp4", "0.0.0.0:9"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	agent, err := p.Dial(t.Context(), a.ID, "tcp4", addrPort(p.opts.GuestAddr, 9))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if got, _, _ := net.SplitHostPort(in.RemoteAddr().String()); got != p.opts.GatewayAddr.String() {
		t.Errorf("the guest sees %s as the agent's client, want the gateway", got)
	}
	if err := roundTrip(out); err != nil {
		t.Fatalf("before: %v", err)
	}

	g.move(t, p, b.ID) // the same machine, in another sandbox's namespace
	for name, c := range map[string]net.Conn{"outgoing": out, "incoming": in} {
		start := time.Now()
		if err := broken(c); err != nil {
			t.Errorf("%s connection of a clone: %v", name, err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("%s connection of a clone broke after %s", name, d)
		}
	}
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("new connection of the clone: %s", got)
	}
}

// Cut does the same for a machine that is put back in its own namespace.
func TestCut(t *testing.T) {
	p := newReal(t, "a00001")
	a := up(t, p, "aaaaaaaaaa")
	g := attach(t, p, a.ID)
	var c net.Conn
	if err := g.run(func() (err error) { c, err = net.Dial("tcp4", addrPort(webAddr, 80)); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := roundTrip(c); err != nil {
		t.Fatal(err)
	}
	if err := p.Cut(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if err := broken(c); err != nil {
		t.Error(err)
	}
	if err := p.Cut(t.Context(), "zzzzzzzzzz"); !errors.Is(err, ErrNotFound) {
		t.Errorf("cut of no sandbox: got %v", err)
	}
}

// Packets of unknown connections are answered with a reset on either side.
func TestMidStreamReset(t *testing.T) {
	p := newReal(t, "a00001")
	a := up(t, p, "aaaaaaaaaa")
	g := attach(t, p, a.ID)
	tap := wireIn(t, g.run, "eth0")
	tap.send(t, p.opts.GatewayMAC, packet{src: netip.AddrPortFrom(p.opts.GuestAddr, 1234), dst: netip.AddrPortFrom(webAddr, 80), tcpFlags: tcpACK})
	if !tap.sees(time.Second, reset(80)) {
		t.Error("guest to outside: no reset")
	}
	br := wireIn(t, func(fn func() error) error { return fn() }, p.names.bridge())
	bridge, _ := p.blockOf(a.Addr)
	route(t, packet{src: netip.AddrPortFrom(bridge.Addr(), 1234), dst: netip.AddrPortFrom(a.Addr, 81), tcpFlags: tcpACK})
	if !br.sees(time.Second, reset(81)) {
		t.Error("outside to guest: no reset")
	}
}

func TestNoneIsAlone(t *testing.T) {
	p := newReal(t, "a00001")
	n := Network{ID: "aaaaaaaaaa", Mode: None}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	b := up(t, p, "bbbbbbbbbb")
	g := attach(t, p, n.ID)
	g.listen(t, "0.0.0.0:7")
	bridge, _ := p.blockOf(b.Addr)
	for _, address := range []string{
		addrPort(webAddr, 80), addrPort(hostAddr, 22), addrPort(bridge.Addr(), 22), addrPort(b.Addr, 7),
		addrPort(p.opts.GatewayAddr, 53), addrPort(metadataAddr, 80), addrPort(dnsAddr, 53),
	} {
		if got := g.tcp(address); got != refused {
			t.Errorf("tcp to %s: got %s, want %s", address, got, refused)
		}
		if got := g.udp(address); got != refused {
			t.Errorf("udp to %s: got %s, want %s", address, got, refused)
		}
	}
	c, err := p.Dial(t.Context(), n.ID, "tcp", addrPort(p.opts.GuestAddr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := bufio.NewReader(c).ReadString('\n'); line != p.opts.GatewayAddr.String()+"\n" {
		t.Errorf("agent's connection: %q, %v", line, err)
	}
	if err := p.Enter(n.ID, func() error {
		is, err := net.Interfaces()
		if len(is) != 2 {
			return fmt.Errorf("interfaces inside: %v", is)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// Dialling a guest that is not on its tap yet waits for it and then succeeds
// at once.
func TestDialWaitsForGuest(t *testing.T) {
	p := newReal(t, "a00001")
	n := up(t, p, "aaaaaaaaaa")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Dial(short, n.ID, "tcp", addrPort(p.opts.GuestAddr, 7)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with no guest: got %v, want the deadline", err)
	}
	type result struct {
		at  time.Time
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := p.Dial(t.Context(), n.ID, "tcp", addrPort(p.opts.GuestAddr, 7))
		if err == nil {
			c.Close()
		}
		done <- result{time.Now(), err}
	}()
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	g := attach(t, p, n.ID)
	r := <-done
	// A guest without a listener answers with a reset: it was reached.
	if r.err != nil && outcome(r.err) != refused {
		t.Fatal(r.err)
	}
	if d := r.at.Sub(start); d > 500*time.Millisecond {
		t.Errorf("reached the guest %s after it came: the first packet was lost", d)
	}
	_ = g
	if _, err := p.Dial(t.Context(), n.ID, "tcp", "localhost:7"); err == nil {
		t.Error("dialled a name")
	}
	if _, err := p.Dial(t.Context(), "zzzzzzzzzz", "tcp", "10.0.0.1:7"); !errors.Is(err, ErrNotFound) {
		t.Errorf("dial from no sandbox: got %v", err)
	}
}

// The host forwards for us and for nobody else, and not at all afterwards.
func TestHostIsNoRouter(t *testing.T) {
	p := newReal(t, "a00001")
	other := newReal(t, "a00002")
	lan, err := newLab(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer lan.close()
	lanAddr := netip.MustParseAddr("203.0.113.2")
	connectLab(t, lan, "lan0", "203.0.113.1/24", lanAddr)
	lan.listen(t, "0.0.0.0:7")
	if err := internet.run(func() error { return addRoute("203.0.113.0/24", hostAddr) }); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		var s string
		for _, i := range []string{"eth0", "lan0"} {
			v, err := readSysctl(ifaceSysctl(forwarding, i))
			s += fmt.Sprint(i, " ", v, " ", err, "\n")
		}
		v, _ := readSysctl(ipForward)
		return s + "all " + v
	}
	before := state()
	through := func() (got string) {
		internet.run(func() error { got = tcpHere(addrPort(lanAddr, 7)); return nil })
		return got
	}
	if got := through(); got != silent {
		t.Fatalf("the host is a router before anything was done: %s", got)
	}
	up(t, p, "aaaaaaaaaa")
	up(t, other, "bbbbbbbbbb")
	g := attach(t, other, "bbbbbbbbbb")
	if got := through(); got != silent {
		t.Errorf("the host became a router: %s", got)
	}
	if got := g.tcp(addrPort(lanAddr, 7)); got != "203.0.113.1" {
		t.Errorf("guest to the other network: got %s", got)
	}
	// Something else turns it off; the next Up makes good for it.
	if err := writeSysctl(ifaceSysctl(forwarding, "eth0"), "0"); err != nil {
		t.Fatal(err)
	}
	up(t, other, "cccccccccc")
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("after forwarding was turned off: got %s", got)
	}
	if err := other.Down(t.Context(), "cccccccccc"); err != nil {
		t.Fatal(err)
	}
	// One instance goes, the other one's guests go on.
	if err := p.Down(t.Context(), "aaaaaaaaaa"); err != nil {
		t.Fatal(err)
	}
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("after another instance went: got %s", got)
	}
	if err := other.Down(t.Context(), "bbbbbbbbbb"); err != nil {
		t.Fatal(err)
	}
	if after := state(); after != before {
		t.Errorf("forwarding before:\n%s\nafter:\n%s", before, after)
	}
}

// Guests work the same where the host forwards already and filters bridged
// packets by IP rules, as container hosts do.
func TestForwardingHost(t *testing.T) {
	p := newReal(t, "a00001")
	set := func(v string) {
		if err := writeSysctl(ipForward, v); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	t.Cleanup(func() { set("0") })
	n := up(t, p, "aaaaaaaaaa", Port{Host: 8080, Guest: 7, Protocol: TCP})
	w, err := p.kernel.shared(t.Context())
	if err != nil || len(w.uplinks) != 0 {
		t.Errorf("held %v, %v", w.uplinks, err)
	}
	g := attach(t, p, n.ID)
	g.listen(t, "0.0.0.0:7")
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("out: %s", got)
	}
	bridge, _ := p.blockOf(n.Addr)
	if got := tcpHere("127.0.0.1:8080"); got != bridge.Addr().String() {
		t.Errorf("in: %s", got)
	}
	const brnf = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	was, err := readSysctl(brnf)
	if os.IsNotExist(err) {
		t.Log("bridge filter is not loaded; not tried with and without")
		return
	}
	defer writeSysctl(brnf, was)
	for _, v := range []string{"0", "1"} {
		if err := writeSysctl(brnf, v); err != nil {
			t.Fatal(err)
		}
		if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
			t.Errorf("bridge-nf-call-iptables=%s: out: %s", v, got)
		}
		if got := tcpHere("127.0.0.1:8080"); got != bridge.Addr().String() {
			t.Errorf("bridge-nf-call-iptables=%s: in: %s", v, got)
		}
		if got := g.tcp(addrPort(hostAddr, 22)); got != refused {
			t.Errorf("bridge-nf-call-iptables=%s: host: %s", v, got)
		}
	}
	// If the host stops forwarding, the next Up makes good for it.
	set("0")
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("after the host stopped forwarding: %s", got)
	}
}

// Reloading a firewall flushes everybody's rules. Guests stay apart, an operator
// is told, and the next Up repairs it.
func TestFlushedHost(t *testing.T) {
	p := newReal(t, "a00001")
	port := Port{Host: 8080, Guest: 7, Protocol: TCP}
	a, b := up(t, p, "aaaaaaaaaa", port), up(t, p, "bbbbbbbbbb")
	ga, gb := attach(t, p, a.ID), attach(t, p, b.ID)
	ga.listen(t, "0.0.0.0:7")
	gb.listen(t, "0.0.0.0:7")
	remarks := func() int {
		notes, err := p.Notes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, note := range notes {
			if strings.Contains(note.Text, a.ID) || strings.Contains(note.Text, b.ID) {
				n++
			}
		}
		return n
	}
	if n := remarks(); n != 0 {
		t.Errorf("%d remarks on a sound network", n)
	}
	for _, damage := range []struct {
		name string
		do   func() error
	}{
		{"rules flushed", p.kernel.(*linux).dropTables},
		{"bridge removed", func() error { return p.kernel.(*linux).dropLink(p.names.bridge()) }},
	} {
		if err := damage.do(); err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{addrPort(b.Addr, 7), addrPort(metadataAddr, 80)} {
			if got := ga.tcp(address); got != refused {
				t.Errorf("%s: tcp to %s: got %s, want %s", damage.name, address, got, refused)
			}
		}
		if n := remarks(); n != 2 {
			t.Errorf("%s: %d remarks, want one for each sandbox", damage.name, n)
		}
		for _, n := range []Network{a, b} {
			if err := p.Up(t.Context(), n); err != nil {
				t.Fatalf("%s: %v", damage.name, err)
			}
		}
		if n := remarks(); n != 0 {
			t.Errorf("%s: %d remarks after the repair", damage.name, n)
		}
		bridge, _ := p.blockOf(a.Addr)
		for got, want := range map[string]string{
			ga.tcp(addrPort(webAddr, 80)):  hostAddr.String(),
			gb.tcp(addrPort(hostAddr, 22)): refused,
			tcpHere("127.0.0.1:8080"):      bridge.Addr().String(),
		} {
			if got != want {
				t.Errorf("%s: after the repair got %s, want %s", damage.name, got, want)
			}
		}
	}
}

func roundTrip(c net.Conn) error {
	c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil { // greeting
		return err
	}
	if _, err := c.Write([]byte("ping\n")); err != nil {
		return err
	}
	_, err := r.ReadString('\n')
	return err
}

// broken writes to c and returns nil if the other end answers that it does not
// know the connection.
func broken(c net.Conn) error {
	c.SetDeadline(time.Now().Add(2 * time.Second))
	_, err := c.Write([]byte("still there?\n"))
	if err == nil {
		_, err = c.Read(make([]byte, 100))
	} // else the stack had something to say of its own accord before
	if errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	return fmt.Errorf("got %v, want a reset", err)
}
