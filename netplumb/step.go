package netplumb

import (
	"fmt"
	"net/netip"
)

// verb is what a step does.
type verb uint8

const (
	makeTables verb = iota
	dropTables
	makeBridge
	dropBridge
	holdForwarding
	dropForwarding
	changeElements
	makeNamespace
	dropNamespace
	makeTap
	makeRules
	makeVeth
	dropVeth
)

// opposite pairs a verb with the one that takes it back. What is missing here
// lives inside a namespace and goes with it.
var opposite = map[verb]verb{
	makeTables:     dropTables,
	makeBridge:     dropBridge,
	holdForwarding: dropForwarding,
	changeElements: changeElements,
	makeNamespace:  dropNamespace,
	makeVeth:       dropVeth,
}

// step is one change to the kernel, small enough to have happened or not.
// Applying a step that has already happened is no error.
type step struct {
	verb     verb
	fresh    bool         // makeTables, makeBridge, makeRules: there were none before
	id       string       // sandbox, where the step concerns one
	iface    string       // holdForwarding
	last     bool         // dropForwarding: the tables go next
	prefix   netip.Prefix // makeBridge; makeVeth: the bridge to attach to
	uplinks  []string     // makeTables: forwarding that the old ones held
	rules    ruleset      // makeRules
	net      Network      // makeTap, makeVeth
	add, del []element    // changeElements
}

// inverse undoes s. What was written over something older has none: the older
// one is not known any more, or is used by others.
func (s step) inverse() (step, bool) {
	v, ok := opposite[s.verb]
	if (s.verb == makeTables || s.verb == makeBridge) && !s.fresh {
		return step{}, false
	}
	s.verb = v
	s.add, s.del = s.del, s.add
	return s, ok
}

func (s step) String() string {
	switch s.verb {
	case makeTables:
		return "write host rules"
	case dropTables:
		return "remove host rules"
	case makeBridge:
		return fmt.Sprintf("make bridge %s", s.prefix)
	case dropBridge:
		return "remove bridge"
	case holdForwarding:
		return "turn on forwarding on " + s.iface
	case dropForwarding:
		return "restore forwarding on " + s.iface
	case changeElements:
		return fmt.Sprintf("change host rules of %s: remove %v, add %v", s.id, s.del, s.add)
	case makeNamespace:
		return "make namespace of " + s.id
	case dropNamespace:
		return "remove namespace of " + s.id
	case makeTap:
		return "make tap of " + s.id
	case makeRules:
		return "write rules of " + s.id
	case makeVeth:
		return "make veth of " + s.id
	case dropVeth:
		return "remove veth of " + s.id
	}
	return fmt.Sprintf("step %d", s.verb)
}
