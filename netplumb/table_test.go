package netplumb

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tableInstance is the instance of the tests in this file; the fake knows it.
const tableInstance = "000000"

var (
	addrA   = netip.MustParseAddr("10.213.16.2")
	addrB   = netip.MustParseAddr("10.213.16.3")
	web     = Port{Host: 8080, Guest: 80, Protocol: TCP}
	dns     = Port{HostIP: netip.MustParseAddr("127.0.0.1"), Host: 5353, Guest: 53, Protocol: UDP}
	natA    = Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: addrA, Upstream: []netip.Addr{dnsAddr}}
	natB    = Network{ID: "bbbbbbbbbb", Mode: NAT, Addr: addrB, Upstream: []netip.Addr{dnsAddr}}
	noneC   = Network{ID: "cccccccccc", Mode: None}
	whole   = "namespace tap rules veth uplink"
	hostup  = "bridge 10.213.16.1/20\ntables\nforwarding on eth0\n"
	resolve = "  resolver 198.51.100.53\n"
)

func with(n Network, ports ...Port) Network { n.Ports = ports; return n }
func at(n Network, a netip.Addr) Network    { n.Addr = a; return n }

// act is one call; want is what the world looks like after it, err what the
// call returns.
type act struct {
	do   func(t *testing.T, p *Plumber) error
	err  error
	want string
}

func upAct(n Network) func(*testing.T, *Plumber) error {
	return func(t *testing.T, p *Plumber) error { return p.Up(t.Context(), n) }
}

func downAct(id string) func(*testing.T, *Plumber) error {
	return func(t *testing.T, p *Plumber) error { return p.Down(t.Context(), id) }
}

func sweepAct(want string, keep ...Network) func(*testing.T, *Plumber) error {
	return func(t *testing.T, p *Plumber) error {
		removed, err := p.Sweep(t.Context(), keep)
		if got := strings.Join(removed, " "); got != want {
			t.Errorf("sweep removed %q, want %q", got, want)
		}
		return err
	}
}

var tableTests = []struct {
	name string
	acts []act
}{
	{"one sandbox", []act{
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
		{do: downAct("aaaaaaaaaa"), want: ""},
		{do: downAct("aaaaaaaaaa"), want: ""},
	}},
	{"none has no part in the shared objects", []act{
		{do: upAct(noneC), want: "sandbox cccccccccc namespace tap rules\n"},
		{do: downAct("cccccccccc"), want: ""},
	}},
	{"the last one takes the bridge along", []act{
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
		{do: upAct(natB), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve +
			"sandbox bbbbbbbbbb " + whole + "\n  address 10.213.16.3\n" + resolve},
		{do: upAct(noneC), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve +
			"sandbox bbbbbbbbbb " + whole + "\n  address 10.213.16.3\n" + resolve + "sandbox cccccccccc namespace tap rules\n"},
		{do: downAct("aaaaaaaaaa"), want: hostup + "sandbox bbbbbbbbbb " + whole + "\n  address 10.213.16.3\n" + resolve + "sandbox cccccccccc namespace tap rules\n"},
		{do: downAct("bbbbbbbbbb"), want: "sandbox cccccccccc namespace tap rules\n"},
	}},
	{"ports change in place", []act{
		{do: upAct(with(natA, web, dns)), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve +
			"  port 0.0.0.0:8080:80/tcp\n  port 127.0.0.1:5353:53/udp\n"},
		{do: upAct(with(natA, Port{Host: 8080, Guest: 81, Protocol: TCP})), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve +
			"  port 0.0.0.0:8080:81/tcp\n"},
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
	}},
	{"mode changes in place", []act{
		{do: upAct(with(natA, web)), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n"},
		{do: upAct(Network{ID: natA.ID, Mode: None}), want: "sandbox aaaaaaaaaa namespace tap rules\n"},
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
	}},
	{"an address changes", []act{
		{do: upAct(natA), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve},
		{do: upAct(at(natA, netip.MustParseAddr("10.213.16.9"))), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.9\n" + resolve},
		// Alone, it may even move to another block.
		{do: upAct(at(natA, netip.MustParseAddr("10.213.32.9"))), want: "bridge 10.213.32.1/20\ntables\nforwarding on eth0\nsandbox aaaaaaaaaa " + whole + "\n  address 10.213.32.9\n" + resolve},
	}},
	{"refusals leave nothing", []act{
		{do: upAct(with(natA, web)), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n"},
		{do: upAct(at(natB, addrA)), err: ErrAddr, want: "same"},
		{do: upAct(at(natB, netip.MustParseAddr("10.213.32.2"))), err: ErrAddr, want: "same"},
		{do: upAct(at(natB, netip.MustParseAddr("10.213.16.1"))), err: ErrAddr, want: "same"},
		{do: upAct(at(natB, netip.MustParseAddr("10.1.1.1"))), err: ErrAddr, want: "same"},
		{do: upAct(with(natB, Port{HostIP: netip.MustParseAddr("127.0.0.1"), Host: 8080, Guest: 1, Protocol: TCP})), err: &PortError{}, want: "same"},
		// The same number of the other protocol is free.
		{do: upAct(with(natB, Port{Host: 8080, Guest: 80, Protocol: UDP})), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n" +
			"sandbox bbbbbbbbbb " + whole + "\n  address 10.213.16.3\n" + resolve + "  port 0.0.0.0:8080:80/udp\n"},
		{do: upAct(with(natA, web, Port{Host: 8080, Guest: 80, Protocol: UDP})), err: &PortError{}, want: "same"},
	}},
	{"sweep keeps what it is told to", []act{
		{do: upAct(with(natA, web, dns)), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n  port 127.0.0.1:5353:53/udp\n"},
		{do: upAct(natB), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n  port 127.0.0.1:5353:53/udp\n" +
			"sandbox bbbbbbbbbb " + whole + "\n  address 10.213.16.3\n" + resolve},
		{do: sweepAct("", with(natA, web, dns), natB, noneC), want: "same"},
		{do: sweepAct("bbbbbbbbbb", with(natA, web)), want: hostup + "sandbox aaaaaaaaaa " + whole + "\n  address 10.213.16.2\n" + resolve + "  port 0.0.0.0:8080:80/tcp\n"},
		{do: sweepAct("aaaaaaaaaa"), want: ""},
	}},
}

// TestTable runs the table against the fake kernel.
func TestTable(t *testing.T) {
	runTable(t, func(t *testing.T) *Plumber {
		o := testOptions(tableInstance)
		o.kernel = newFake()
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

// TestTableReal runs it against the real one.
func TestTableReal(t *testing.T) {
	needScratch(t)
	runTable(t, func(t *testing.T) *Plumber { return newReal(t, tableInstance) })
}

func runTable(t *testing.T, make func(*testing.T) *Plumber) {
	for _, tt := range tableTests {
		t.Run(tt.name, func(t *testing.T) {
			p := make(t)
			last := ""
			for i, a := range tt.acts {
				err := a.do(t, p)
				var pe *PortError
				switch {
				case a.err == nil && err != nil:
					t.Fatalf("act %d: %v", i, err)
				case errors.As(a.err, &pe):
					if !errors.As(err, &pe) {
						t.Fatalf("act %d: got %v, want a port error", i, err)
					}
				case !errors.Is(err, a.err):
					t.Fatalf("act %d: got %v, want %v", i, err, a.err)
				}
				want := a.want
				if want == "same" {
					want = last
				}
				last = want
				if diff := cmp.Diff(want, worldText(t, p)); diff != "" {
					t.Fatalf("act %d: world (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func worldText(t testing.TB, p *Plumber) string {
	t.Helper()
	w, err := p.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return w.String()
}

// TestBreakage fails an Up at each of its steps in turn, once with an error and
// once as a crash that leaves everything where it is. The first must be undone,
// the second swept, with and without other sandboxes around.
func TestBreakage(t *testing.T) {
	breakage(t, func(t *testing.T) *Plumber {
		o := testOptions(tableInstance)
		o.kernel = newFake()
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

func TestBreakageReal(t *testing.T) {
	needScratch(t)
	breakage(t, func(t *testing.T) *Plumber { return newReal(t, tableInstance) })
}

func breakage(t *testing.T, make func(*testing.T) *Plumber) {
	for _, others := range [][]Network{nil, {natB}} {
		for _, crash := range []bool{false, true} {
			for n := 1; ; n++ {
				finished := false
				t.Run(fmt.Sprintf("others=%d/crash=%t/step=%d", len(others), crash, n), func(t *testing.T) {
					p := make(t)
					for _, o := range others {
						if err := p.Up(t.Context(), o); err != nil {
							t.Fatal(err)
						}
					}
					before := worldText(t, p)
					whole := p.kernel
					p.kernel = &breaking{kernel: whole, left: n, crash: crash}
					err := p.Up(t.Context(), with(natA, web))
					p.kernel = whole
					if err == nil {
						finished = true
						return
					}
					if !errors.Is(err, errBroken) {
						t.Fatal(err)
					}
					if crash {
						if _, err := p.Sweep(t.Context(), others); err != nil {
							t.Fatal(err)
						}
					}
					if diff := cmp.Diff(before, worldText(t, p)); diff != "" {
						t.Fatalf("world (-before +after):\n%s", diff)
					}
					// What a crash left must not be in the way of the next try either.
					if crash {
						p.kernel = &breaking{kernel: whole, left: n, crash: true}
						p.Up(t.Context(), with(natA, web))
						p.kernel = whole
					}
					if err := p.Up(t.Context(), with(natA, web)); err != nil {
						t.Fatalf("next try: %v", err)
					}
					if err := p.Down(t.Context(), natA.ID); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(before, worldText(t, p)); diff != "" {
						t.Fatalf("world after down (-before +after):\n%s", diff)
					}
				})
				if finished || t.Failed() {
					if n < 6 && !t.Failed() {
						t.Errorf("an Up took %d steps: the table does not test what it should", n-1)
					}
					break
				}
			}
		}
	}
}

// TestUpgrade finds tables of another version in the kernel: they are replaced,
// and every sandbox is in the new ones.
func TestUpgrade(t *testing.T) {
	o := testOptions(tableInstance)
	f := newFake()
	o.kernel = f
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []Network{with(natA, web), natB} {
		if err := p.Up(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	want := worldText(t, p)
	f.w.tables = "older"
	if err := p.Up(t.Context(), natB); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, worldText(t, p)); diff != "" {
		t.Fatalf("world (-want +got):\n%s", diff)
	}
	if f.w.tables != p.hostFingerprint {
		t.Errorf("tables are still those of the other version")
	}
	// A failure while replacing must not remove what others use.
	f.w.tables = "older"
	p.kernel = &breaking{kernel: f, left: 3}
	if err := p.Up(t.Context(), at(natB, netip.MustParseAddr("10.213.16.77"))); !errors.Is(err, errBroken) {
		t.Fatalf("got %v, want the broken step", err)
	}
	if f.w.tables == "" {
		t.Errorf("undo removed the tables under a running sandbox")
	}
}

func TestForwardingIsHeldOnlyWhereNeeded(t *testing.T) {
	o := testOptions(tableInstance)
	f := newFake()
	f.uplinks = map[string]bool{"eth0": false, "wg0": false, "lan0": true}
	o.kernel = f
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Up(t.Context(), natA); err != nil {
		t.Fatal(err)
	}
	if got, want := f.w.uplinks, []string{"eth0", "wg0"}; !slices.Equal(got, want) {
		t.Errorf("held %v, want %v", got, want)
	}
	f.forwards = true // the host begins to forward by itself
	if err := p.Up(t.Context(), natB); err != nil {
		t.Fatal(err)
	}
	if len(f.w.uplinks) != 0 {
		t.Errorf("still held: %v", f.w.uplinks)
	}
	if !maps.Equal(f.uplinks, map[string]bool{"eth0": true, "wg0": true, "lan0": true}) {
		t.Errorf("forwarding was turned off under the host: %v", f.uplinks)
	}
}
