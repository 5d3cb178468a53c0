package netplumb

import (
	"testing"
)

func TestTraffic(t *testing.T) {
	p := newReal(t, "a00001")
	a := up(t, p, "aaaaaaaaaa")
	b := up(t, p, "bbbbbbbbbb")
	ga, gb := attach(t, p, a.ID), attach(t, p, b.ID)
	gb.listen(t, "0.0.0.0:7")
	if err := listenHere(t, "0.0.0.0:22"); err != nil {
		t.Fatal(err)
	}
	bridge, _ := p.blockOf(a.Addr)

	for _, c := range []struct{ name, address, want string }{
		{"the internet", addrPort(webAddr, 80), hostAddr.String()},
		{"another guest", addrPort(b.Addr, 7), refused},
		{"the host by its own address", addrPort(hostAddr, 22), refused},
		{"the host by the bridge's address", addrPort(bridge.Addr(), 22), refused},
		{"the gateway", addrPort(p.opts.GatewayAddr, 22), refused},
		{"cloud metadata", addrPort(metadataAddr, 80), refused},
		{"resolver", addrPort(p.opts.GatewayAddr, 53), hostAddr.String()},
	} {
		if got := ga.tcp(c.address); got != c.want {
			t.Errorf("tcp to %s (%s): got %s, want %s", c.name, c.address, got, c.want)
		}
	}
	if got := ga.udp(addrPort(p.opts.GatewayAddr, 53)); got != hostAddr.String() {
		t.Errorf("dns: got %s", got)
	}
}
