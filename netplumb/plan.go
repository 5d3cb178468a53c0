package netplumb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// insideSteps lead from a namespace as it is to what n asks for. They concern
// one sandbox alone and need no lock.
func insideSteps(have cell, n Network, rules ruleset) []step {
	var steps []step
	if have.ns == nsStale {
		steps = append(steps, step{verb: dropNamespace, id: n.ID})
	}
	if have.ns != nsThere {
		steps = append(steps, step{verb: makeNamespace, id: n.ID})
	}
	if !have.tap || have.tapOwner != n.TapOwner {
		steps = append(steps, step{verb: makeTap, id: n.ID, net: n})
	}
	if have.rules != rules.fingerprint() {
		steps = append(steps, step{verb: makeRules, fresh: have.rules == "", id: n.ID, rules: rules})
	}
	return steps
}

// hostSteps lead from have to want on the host. Cells of want that are missing
// lose their elements only: the rest of them lies in namespaces.
func hostSteps(have, want world) []step {
	var steps []step
	have = have.clone()

	if want.tables != "" {
		if have.tables != want.tables {
			// Writing the tables anew empties their sets. Until the elements are
			// back the bridge drops everything, so nothing is ever let through
			// that should not be.
			steps = append(steps, step{verb: makeTables, fresh: have.tables == "", uplinks: have.uplinks})
			for id, c := range have.cells {
				c.elements = nil
				have.cells[id] = c
			}
		}
		if have.bridge.exists && have.bridge.prefix.IsValid() && have.bridge.prefix != want.bridge.prefix {
			steps = append(steps, step{verb: dropBridge})
			have.bridge = bridge{}
		}
		if have.bridge != want.bridge {
			steps = append(steps, step{verb: makeBridge, fresh: !have.bridge.exists, prefix: want.bridge.prefix})
		}
		for _, u := range missing(want.uplinks, have.uplinks) {
			steps = append(steps, step{verb: holdForwarding, iface: u})
		}
		for _, u := range missing(union(have.uplinks, have.recorded), want.uplinks) {
			steps = append(steps, step{verb: dropForwarding, iface: u})
		}
	}

	ids := slices.Collect(maps.Keys(have.cells))
	ids = append(ids, slices.Collect(maps.Keys(want.cells))...)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		h, w := have.cells[id], want.cells[id]
		rebuild := w.veth && (!h.veth || h.link != w.link)
		if h.veth && rebuild {
			steps = append(steps, step{verb: dropVeth, id: id})
		}
		if rebuild {
			steps = append(steps, step{verb: makeVeth, id: id, prefix: want.bridge.prefix, net: Network{ID: id, Addr: w.link}})
		}
		add, del := missing(w.elements, h.elements), missing(h.elements, w.elements)
		if len(add)+len(del) > 0 && want.tables != "" { // else they go with the tables
			steps = append(steps, step{verb: changeElements, id: id, add: add, del: del})
		}
		if _, kept := want.cells[id]; kept && h.veth && !w.veth {
			steps = append(steps, step{verb: dropVeth, id: id})
		}
	}

	if want.tables == "" {
		for _, u := range union(have.uplinks, have.recorded) {
			steps = append(steps, step{verb: dropForwarding, iface: u, last: true})
		}
		if have.bridge.exists {
			steps = append(steps, step{verb: dropBridge})
		}
		if have.tables != "" {
			steps = append(steps, step{verb: dropTables})
		}
	}
	return steps
}

// withNetwork is have as it should be once n is up, and an error when n cannot
// come up in it.
func (p *Plumber) withNetwork(have world, n Network, occupied func() ([]netip.Prefix, error)) (world, error) {
	want := have.clone()
	if n.Mode != NAT {
		want.cells[n.ID] = cell{}
		return withoutIdle(want), nil
	}
	block, err := p.blockOf(n.Addr)
	if err != nil {
		return world{}, err
	}
	// Where the other sandboxes are. A bridge that somebody removed from under
	// them has to be made again in the same place.
	home := have.bridge.prefix
	others := 0
	for id, c := range have.cells {
		if id == n.ID || !c.natted() {
			continue
		}
		others++
		for _, e := range c.elements {
			if b, err := p.blockOf(e.addr); err == nil && !home.IsValid() {
				home = b
			}
			if e.addr == n.Addr {
				return world{}, fmt.Errorf("address %s is used by sandbox %s: %w", n.Addr, id, ErrAddr)
			}
			if i := slices.IndexFunc(n.Ports, e.port.overlaps); e.kind == port && i >= 0 {
				return world{}, &PortError{Port: n.Ports[i], Sandbox: id, Reason: "sandbox " + id + " has it"}
			}
		}
	}
	if others > 0 && home != block {
		return world{}, fmt.Errorf("address %s is outside %s, where the other sandboxes are: %w", n.Addr, home.Masked(), ErrAddr)
	}
	if have.bridge.prefix != block {
		used, err := occupied()
		if err != nil {
			return world{}, err
		}
		if i := slices.IndexFunc(used, block.Overlaps); i >= 0 {
			return world{}, fmt.Errorf("address %s: the host uses %s: %w", n.Addr, used[i], ErrAddr)
		}
	}
	want.bridge = bridge{exists: true, ready: true, prefix: block}
	want.tables = p.hostFingerprint
	want.uplinks = have.needed
	want.cells[n.ID] = cell{veth: true, link: n.Addr, elements: elementsOf(n)}
	return want, nil
}

// idle tells whether nobody uses the shared part.
func (w world) idle() bool {
	for _, c := range w.cells {
		if c.natted() {
			return false
		}
	}
	return true
}

// withoutIdle takes the shared part out of a world that is idle.
func withoutIdle(w world) world {
	if w.idle() {
		w.tables, w.bridge, w.uplinks, w.recorded = "", bridge{}, nil, nil
	}
	return w
}

// missing returns what is in all and not in known, in the order of all.
func missing[T comparable](all, known []T) []T {
	var out []T
	for _, v := range all {
		if !slices.Contains(known, v) {
			out = append(out, v)
		}
	}
	return out
}

// union returns what is in either, sorted.
func union(a, b []string) []string {
	u := slices.Concat(a, b)
	slices.Sort(u)
	return slices.Compact(u)
}
