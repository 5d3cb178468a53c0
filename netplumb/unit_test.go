package netplumb

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
)

func TestNames(t *testing.T) {
	for _, bad := range []string{"", "12345", "1234567", "ABCDEF", "abcdeg", "12 456"} {
		if _, err := newNames(bad); err == nil {
			t.Errorf("instance %q was accepted", bad)
		}
	}
	const id = "0123456789"
	seen := map[string]string{}
	for _, instance := range []string{"000000", "ffffff", "a1b2c3", "fbefbe"} { // the last is all '-' in base64
		n, err := newNames(instance)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{n.bridge(), n.veth(id)} {
			if len(name) > 15 || strings.ContainsAny(name, "/: ") {
				t.Errorf("interface name %q", name)
			}
			if other, ok := seen[name]; ok {
				t.Errorf("%s and %s both use %q", instance, other, name)
			}
			seen[name] = instance
		}
		if got, ok := n.vethID(n.veth(id)); !ok || got != id {
			t.Errorf("veth back to id: %q, %t", got, ok)
		}
		if got, ok := n.netnsID(n.netns(id)); !ok || got != id {
			t.Errorf("namespace back to id: %q, %t", got, ok)
		}
		for _, foreign := range []string{"eth0", n.veths, n.veth("short"), n.veth(id) + "x", n.veth("UPPERCASE0")} {
			if got, ok := n.vethID(foreign); ok {
				t.Errorf("%q taken for the veth of %q", foreign, got)
			}
		}
		if m := n.bridgeMAC(); m[0]&3 != 2 {
			t.Errorf("%s is not a local unicast address", m)
		}
	}
}

func TestNetworkCheck(t *testing.T) {
	ok := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: addrA}
	for _, tt := range []struct {
		name   string
		change func(*Network)
		want   []string // what the error names; none: no error
	}{
		{"fine", func(n *Network) {}, nil},
		{"id with a path", func(n *Network) { n.ID = "../../etc/" }, []string{"id"}},
		{"short id", func(n *Network) { n.ID = "a" }, []string{"id"}},
		{"mode", func(n *Network) { n.Mode = "bridge" }, []string{"mode"}},
		{"no address", func(n *Network) { n.Addr = netip.Addr{} }, []string{"address"}},
		{"ports of none", func(n *Network) { n.Mode = None; n.Ports = []Port{web} }, []string{"ports"}},
		{"port 0", func(n *Network) { n.Ports = []Port{{Host: 0, Guest: 1, Protocol: TCP}} }, []string{"0 is not a port"}},
		{"protocol", func(n *Network) { n.Ports = []Port{{Host: 1, Guest: 1, Protocol: "sctp"}} }, []string{"protocol"}},
		{"IPv6", func(n *Network) {
			n.Ports = []Port{{HostIP: netip.IPv6Loopback(), Host: 1, Guest: 1, Protocol: TCP}}
		}, []string{"IPv4"}},
		{"same port twice", func(n *Network) { n.Ports = []Port{web, {HostIP: hostAddr, Host: 8080, Guest: 1, Protocol: TCP}} }, []string{"overlaps"}},
		{"resolver on loopback", func(n *Network) { n.Upstream = []netip.Addr{netip.MustParseAddr("127.0.0.53")} }, []string{"resolver"}},
		{"everything at once", func(n *Network) { n.ID, n.Mode, n.TapOwner = "", "", -1 }, []string{"id", "mode", "tap owner"}},
	} {
		n := ok
		tt.change(&n)
		err := n.check()
		if (err != nil) != (len(tt.want) > 0) {
			t.Errorf("%s: got %v", tt.name, err)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not name %q", tt.name, err, w)
			}
		}
	}
}

func TestOptionsCheck(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"instance":       func(o *Options) { o.Instance = "xyz" },
		"apart":          func(o *Options) { o.PrefixBits = 32 },
		"same":           func(o *Options) { o.GuestAddr = o.GatewayAddr },
		"IPv6":           func(o *Options) { o.GuestAddr = netip.IPv6Loopback() },
		"no MAC":         func(o *Options) { o.GuestMAC = nil },
		"tap is uplink":  func(o *Options) { o.TapName = uplinkName },
		"tap is missing": func(o *Options) { o.TapName = "" },
		"pool too small": func(o *Options) { o.Pool = netip.MustParsePrefix("10.0.0.0/30") },
		"pool of IPv6":   func(o *Options) { o.Pool = netip.MustParsePrefix("fd00::/16") },
	} {
		o := testOptions("000000")
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFreeBlock(t *testing.T) {
	f := newFake()
	o := testOptions(tableInstance)
	o.kernel = f
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	first, err := p.FreeAddr(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := p.blockOf(first)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.FreeAddr(nil)
	if err != nil || !block.Contains(again) {
		t.Errorf("%s is not in %s, where an instance always begins; %v", again, block, err)
	}
	// The block follows the addresses that stopped sandboxes keep.
	kept := netip.MustParseAddr("10.213.240.7")
	if a, err := p.FreeAddr([]netip.Addr{kept}); err != nil || !netip.MustParsePrefix("10.213.240.0/20").Contains(a) || a == kept {
		t.Errorf("beside %s: got %s, %v", kept, a, err)
	}
	// It avoids what the host uses, be it wider, narrower or a single address.
	for _, r := range []string{block.Masked().String(), first.String() + "/32", "10.213.0.0/17"} {
		f.routes = []netip.Prefix{netip.MustParsePrefix(r)}
		a, err := p.FreeAddr(nil)
		if err != nil {
			t.Errorf("with %s in use: %v", r, err)
		} else if b, _ := p.blockOf(a); b.Overlaps(f.routes[0]) {
			t.Errorf("with %s in use: got %s", r, a)
		}
	}
	f.routes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if a, err := p.FreeAddr(nil); !errors.Is(err, ErrExhausted) {
		t.Errorf("with the whole pool in use: got %s, %v", a, err)
	}
	if err := p.Up(t.Context(), natA); !errors.Is(err, ErrAddr) {
		t.Errorf("up where the host has come to use the block: %v", err)
	}
	notes, err := p.Notes(t.Context())
	if err != nil || !slices.ContainsFunc(notes, func(n Note) bool { return strings.Contains(n.Text, "pool") }) {
		t.Errorf("notes do not mention the pool: %v, %v", notes, err)
	}
}

func TestHostResolvers(t *testing.T) {
	const stub = "# a comment\nnameserver 127.0.0.53\nnameserver ::1\noptions edns0\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
		file  string
	}{
		{"ordinary", map[string]string{"/etc/resolv.conf": "search x\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n"}, "[192.0.2.53 192.0.2.54]", "/etc/resolv.conf"},
		{"systemd-resolved", map[string]string{"/etc/resolv.conf": stub, "/run/systemd/resolve/resolv.conf": "nameserver 192.0.2.55\n"}, "[192.0.2.55]", "/run/systemd/resolve/resolv.conf"},
		{"mixed", map[string]string{"/etc/resolv.conf": stub + "nameserver 192.0.2.53\n"}, "[192.0.2.53]", "/etc/resolv.conf"},
		{"cache behind NetworkManager", map[string]string{"/etc/resolv.conf": stub, "/run/NetworkManager/no-stub-resolv.conf": "nameserver 192.0.2.56\n"}, "[192.0.2.56]", "/run/NetworkManager/no-stub-resolv.conf"},
		{"loopback only", map[string]string{"/etc/resolv.conf": stub}, "[1.1.1.1 8.8.8.8]", ""},
		{"IPv6 only", map[string]string{"/etc/resolv.conf": "nameserver 2001:db8::1\nnameserver fe80::1%eth0\n"}, "[1.1.1.1 8.8.8.8]", ""},
		{"mapped, repeated, broken, many", map[string]string{"/etc/resolv.conf": "nameserver ::ffff:192.0.2.1\nnameserver 192.0.2.1\nnameserver\nnameserver x\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n"}, "[192.0.2.1 192.0.2.2 192.0.2.3]", "/etc/resolv.conf"},
		{"none", nil, "[1.1.1.1 8.8.8.8]", ""},
	} {
		addrs, file := hostResolvers(func(name string) ([]byte, error) {
			if s, ok := tt.files[name]; ok {
				return []byte(s), nil
			}
			return nil, os.ErrNotExist
		})
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		if g := "[" + strings.Join(got, " ") + "]"; g != tt.want || file != tt.file {
			t.Errorf("%s: got %s from %q, want %s from %q", tt.name, g, file, tt.want, tt.file)
		}
	}
}

// Two rulesets that differ anywhere have different fingerprints, and the same
// one always has the same.
func TestFingerprint(t *testing.T) {
	o := testOptions(tableInstance)
	o.kernel = newFake()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for name, n := range map[string]Network{
		"nat":            natA,
		"none":           {ID: natA.ID, Mode: None},
		"other address":  at(natA, addrB),
		"other resolver": {ID: natA.ID, Mode: NAT, Addr: addrA, Upstream: []netip.Addr{webAddr}},
		"two resolvers":  {ID: natA.ID, Mode: NAT, Addr: addrA, Upstream: []netip.Addr{dnsAddr, webAddr}},
	} {
		f := p.guestRules(n).fingerprint()
		if again := p.guestRules(n).fingerprint(); again != f {
			t.Errorf("%s: %s, then %s", name, f, again)
		}
		if other, ok := seen[f]; ok {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		seen[f] = name
	}
	if p.guestRules(with(natA, web)).fingerprint() != p.guestRules(natA).fingerprint() {
		t.Error("ports change the rules inside, which need not know of them")
	}
}

func TestPortElementRoundTrip(t *testing.T) {
	n, err := newNames(tableInstance)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Port{
		{HostIP: netip.IPv4Unspecified(), Host: 1, Guest: 65535, Protocol: TCP},
		{HostIP: hostAddr, Host: 8080, Guest: 80, Protocol: UDP},
	} {
		e := element{kind: port, addr: addrA, port: p}
		for _, en := range n.entries("aaaaaaaaaa", e) {
			if got, ok := parsePort(en.set, en.value); !ok || got != e {
				t.Errorf("got %+v, %t, want %+v", got, ok, e)
			}
		}
	}
	if _, ok := parsePort(mapPorts, nftables.SetElement{Key: []byte{1}}); ok {
		t.Error("a short element was accepted")
	}
}

// A firewall that closes forwarding is remarked on, with the way out.
func TestNotesOnClosedForward(t *testing.T) {
	p := newReal(t, "b00001")
	has := func() bool {
		notes, err := p.Notes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(notes, func(n Note) bool {
			return strings.Contains(n.Text, "FORWARD") && strings.Contains(n.Fix, p.names.bridge())
		})
	}
	if has() {
		t.Fatal("remark on an open host")
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	policy := nftables.ChainPolicyDrop
	nt := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"})
	c.AddChain(&nftables.Chain{Table: nt, Name: "FORWARD", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.DelTable(nt); c.Flush() })
	if !has() {
		t.Error("no remark on a closed one")
	}
}
