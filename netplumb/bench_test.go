package netplumb

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// BenchmarkUp makes one more network on a host that has some, and does the same
// with the commands that would otherwise be run.
func BenchmarkUp(b *testing.B) {
	b.Run("netplumb", func(b *testing.B) { benchmarkUp(b, 1, byLibrary) })
	b.Run("commands", func(b *testing.B) {
		for _, tool := range []string{"ip", "nft"} {
			if _, err := exec.LookPath(tool); err != nil {
				b.Skip(err)
			}
		}
		benchmarkUp(b, 1, upByCommands)
	})
	b.Run("netplumb-16-at-once", func(b *testing.B) { benchmarkUp(b, 16, byLibrary) })
}

func benchmarkUp(b *testing.B, workers int, make func(*Plumber, Network, string) error) {
	p := newReal(b, "be0001")
	up(b, p, "keeps00000") // the shared part is there
	nets := networks(b, p, b.N)
	dir := b.TempDir()
	before := cpuTime(b)
	b.ResetTimer()
	var g errgroup.Group
	g.SetLimit(workers)
	for _, n := range nets {
		g.Go(func() error {
			return make(p, n, dir)
		})
	}
	err := g.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	if err != nil {
		b.Fatal(err)
	}
}

// cpuTime is what this process and its children used: on a busy machine it says
// more than the clock.
func cpuTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

func byLibrary(p *Plumber, n Network, _ string) error { return p.Up(context.Background(), n) }

func BenchmarkDown(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d-at-once", workers), func(b *testing.B) {
			p := newReal(b, "be0001")
			up(b, p, "keeps00000")
			nets := networks(b, p, b.N)
			for _, n := range nets {
				if err := p.Up(b.Context(), n); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			var g errgroup.Group
			g.SetLimit(workers)
			for _, n := range nets {
				g.Go(func() error { return p.Down(b.Context(), n.ID) })
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
		})
	}
}

// BenchmarkDial connects to a guest from its namespace, and for comparison to
// the same guest from the host.
func BenchmarkDial(b *testing.B) {
	p := newReal(b, "be0001")
	n := up(b, p, "keeps00000")
	g := attach(b, p, n.ID)
	g.listen(b, "0.0.0.0:7")
	b.Run("enter", func(b *testing.B) {
		for b.Loop() {
			if err := p.Enter(n.ID, func() error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("namespace", func(b *testing.B) {
		for b.Loop() {
			c, err := p.Dial(b.Context(), n.ID, "tcp4", addrPort(p.opts.GuestAddr, 7))
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	b.Run("host", func(b *testing.B) {
		for b.Loop() {
			if got := tcpHere(addrPort(n.Addr, 7)); got == refused || got == silent {
				b.Fatal(got)
			}
		}
	})
}

func networks(b *testing.B, p *Plumber, n int) []Network {
	b.Helper()
	var nets []Network
	var taken []netip.Addr
	for i := range n {
		a, err := p.FreeAddr(taken)
		if err != nil {
			b.Fatal(err)
		}
		taken = append(taken, a)
		nets = append(nets, Network{ID: fmt.Sprintf("bench%05d", i), Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}})
	}
	return nets
}

// upByCommands makes the same objects with ip(8) and nft(8), in as few calls as
// they allow.
func upByCommands(p *Plumber, n Network, dir string) error {
	ns, veth, br := p.names.netns(n.ID), p.names.veth(n.ID), p.names.bridge()
	gateway, err := p.blockOf(n.Addr)
	if err != nil {
		return err
	}
	tap := p.opts.TapName
	file := func(name, text string) (string, error) {
		f := filepath.Join(dir, n.ID+name)
		return f, os.WriteFile(f, []byte(text), 0o600)
	}
	inside, err := file("inside", fmt.Sprintf(`link set lo up
tuntap add dev %[1]s mode tap
link set %[1]s address %[2]s up
address add %[3]s/%[4]d dev %[1]s
neighbour replace %[5]s lladdr %[6]s dev %[1]s nud permanent
`, tap, p.opts.GatewayMAC, p.opts.GatewayAddr, p.opts.PrefixBits, p.opts.GuestAddr, p.opts.GuestMAC))
	if err != nil {
		return err
	}
	host, err := file("host", fmt.Sprintf(`link add %[1]s type veth peer name %[2]s address %[3]s netns %[4]s
link set %[1]s master %[5]s up
link set %[1]s type bridge_slave isolated on
`, veth, uplinkName, uplinkMAC(n.Addr), ns, br))
	if err != nil {
		return err
	}
	uplink, err := file("uplink", fmt.Sprintf(`link set %[1]s up
neighbour replace %[2]s lladdr %[3]s dev %[1]s nud permanent
address add %[4]s/32 dev %[1]s
route add default via %[2]s dev %[1]s src %[4]s onlink
`, uplinkName, gateway.Addr(), p.names.bridgeMAC(), n.Addr))
	if err != nil {
		return err
	}
	rules, err := file("rules", fmt.Sprintf(`table ip sietch {
	chain refuse {
		meta l4proto tcp reject with tcp reset
		reject with icmp type admin-prohibited
	}
	chain guard {
		type filter hook prerouting priority raw
		iifname %[1]s ip saddr != %[2]s drop
		iifname %[3]s ip saddr %[4]s/%[5]d drop
		iifname %[3]s ip daddr %[4]s/%[5]d drop
	}
	chain input {
		type filter hook input priority filter; policy drop
		ct state established,related accept
		ct state invalid meta l4proto tcp reject with tcp reset
		ct state invalid drop
		iifname lo accept
		iifname %[1]s meta l4proto icmp accept
		iifname %[1]s jump refuse
	}
	chain forward {
		type filter hook forward priority filter; policy drop
		ct state established,related accept
		ct state invalid meta l4proto tcp reject with tcp reset
		ct state invalid drop
		iifname %[1]s oifname %[3]s accept
		iifname %[3]s oifname %[1]s ct status dnat accept
	}
	chain incoming {
		type nat hook prerouting priority dstnat
		iifname %[3]s ip daddr %[6]s dnat to %[2]s
		iifname %[1]s ip daddr %[4]s udp dport 53 dnat to %[7]s
		iifname %[1]s ip daddr %[4]s tcp dport 53 dnat to %[7]s
	}
	chain outgoing {
		type nat hook postrouting priority srcnat
		oifname %[3]s snat to %[6]s
	}
}
`, tap, p.opts.GuestAddr, uplinkName, p.opts.GatewayAddr, p.opts.PrefixBits, n.Addr, dnsAddr))
	if err != nil {
		return err
	}
	elements, err := file("elements", fmt.Sprintf(`add element bridge %[1]s %[2]s { "%[3]s" . %[4]s }
add element ip %[1]s %[5]s { %[4]s }
add element ip %[1]s %[6]s { %[4]s . %[7]s }
`, p.names.table(), setMembers, veth, n.Addr, setAddresses, setResolvers, dnsAddr))
	if err != nil {
		return err
	}
	for _, c := range [][]string{
		{"ip", "netns", "add", ns},
		{"ip", "netns", "exec", ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 > /proc/sys/net/ipv4/ip_forward"},
		{"ip", "-n", ns, "-batch", inside},
		{"ip", "netns", "exec", ns, "nft", "-f", rules},
		{"ip", "netns", "exec", ns, "sh", "-c", "echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose; echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"},
		{"ip", "-batch", host},
		{"ip", "-n", ns, "-batch", uplink},
		{"nft", "-f", elements},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", c, err, out)
		}
	}
	return nil
}

// The commands of the benchmark make what netplumb makes: a network of theirs
// needs nothing done to it but the mark that says whose rules these are.
func TestCommandsAreEquivalent(t *testing.T) {
	p := newReal(t, "be0001")
	up(t, p, "keeps00000")
	a, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	if err := upByCommands(p, n, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	c, err := p.kernel.cell(t.Context(), n.ID)
	if err != nil {
		t.Fatal(err)
	}
	if c.rules != otherVersion || c.ns != nsThere || !c.tap || c.link != a {
		t.Errorf("commands made %+v", c)
	}
	g := attach(t, p, n.ID)
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("got %s", got)
	}
	if got := g.udp(addrPort(p.opts.GatewayAddr, 53)); got != hostAddr.String() {
		t.Errorf("dns: got %s", got)
	}
}
