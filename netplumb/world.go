package netplumb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// world is what one instance has in the kernel, either as observed or as
// wanted. Everything shared by its sandboxes is here, the rest in cells.
type world struct {
	bridge bridge
	tables string // fingerprint of the host's rules; empty: no tables
	// uplinks are the interfaces whose forwarding this instance turned on;
	// recorded are the same by another record, which outlives the tables.
	uplinks, recorded []string
	// needed are the interfaces that would have to forward and do so only for
	// us, if at all. Observed, never wanted.
	needed []string
	cells  map[string]cell // by sandbox id
}

type bridge struct {
	exists bool
	ready  bool         // up, addressed, forwarding
	prefix netip.Prefix // its own address and the block it stands for
}

// cell is the network of one sandbox.
type cell struct {
	ns       nsState
	tap      bool
	tapOwner int
	rules    string     // fingerprint of the rules inside
	veth     bool       // the host's end exists
	link     netip.Addr // address of the end inside; invalid: not there or not finished
	elements []element  // its entries in the host's tables, sorted
}

type nsState uint8

const (
	nsNone  nsState = iota
	nsStale         // a file is there, but no namespace is mounted on it
	nsThere
)

// element is one entry in the sets and maps of the host's tables.
type element struct {
	kind elementKind
	addr netip.Addr // the sandbox's
	peer netip.Addr // resolver
	port Port
}

type elementKind uint8

const (
	member   elementKind = iota // addr may be used on the sandbox's veth
	resolver                    // addr may ask peer, though it may be the host
	port                        // port leads to addr
)

func (e element) String() string {
	switch e.kind {
	case resolver:
		return "resolver " + e.peer.String()
	case port:
		return "port " + e.port.String()
	}
	return "address " + e.addr.String()
}

func compareElements(a, b element) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), a.addr.Compare(b.addr), a.peer.Compare(b.peer), comparePorts(a.port, b.port))
}

// elementsOf are the entries that n needs in the host's tables.
func elementsOf(n Network) []element {
	if n.Mode != NAT {
		return nil
	}
	es := []element{{kind: member, addr: n.Addr}}
	for _, u := range n.Upstream {
		es = append(es, element{kind: resolver, addr: n.Addr, peer: u})
	}
	for _, p := range n.Ports {
		p.HostIP = p.hostIP()
		es = append(es, element{kind: port, addr: n.Addr, port: p})
	}
	slices.SortFunc(es, compareElements)
	return slices.Compact(es)
}

// network reads a cell back as what was declared for it.
func (c cell) network(id string) Network {
	n := Network{ID: id, Mode: None, TapOwner: c.tapOwner}
	for _, e := range c.elements {
		switch e.kind {
		case member:
			n.Mode, n.Addr = NAT, e.addr
		case resolver:
			n.Upstream = append(n.Upstream, e.peer)
		case port:
			n.Ports = append(n.Ports, e.port)
		}
	}
	return n
}

// natted tells whether the cell uses the shared part of the world.
func (c cell) natted() bool { return len(c.elements) > 0 }

// clone is deep enough for the caller to change one of the two.
func (w world) clone() world {
	w.uplinks = slices.Clone(w.uplinks)
	w.cells = maps.Clone(w.cells)
	if w.cells == nil {
		w.cells = map[string]cell{}
	}
	return w
}

// String prints one object a line, the way tests compare worlds. Fingerprints
// are left out: what they stand for is tested by traffic.
func (w world) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if w.bridge.exists {
		line("bridge %s%s", w.bridge.prefix, unless(w.bridge.ready, " unfinished"))
	}
	if w.tables != "" {
		line("tables")
	}
	for _, u := range w.uplinks {
		line("forwarding on %s", u)
	}
	for _, id := range slices.Sorted(maps.Keys(w.cells)) {
		c := w.cells[id]
		parts := []string{"sandbox", id}
		for _, p := range []struct {
			has  bool
			name string
		}{
			{c.ns == nsStale, "file"}, {c.ns == nsThere, "namespace"}, {c.tap, "tap"},
			{c.rules != "", "rules"}, {c.veth, "veth"}, {c.link.IsValid(), "uplink"},
		} {
			if p.has {
				parts = append(parts, p.name)
			}
		}
		line("%s", strings.Join(parts, " "))
		for _, e := range c.elements {
			line("  %s", e)
		}
	}
	return b.String()
}

func unless(ok bool, s string) string {
	if ok {
		return ""
	}
	return s
}
