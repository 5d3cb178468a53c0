package netplumb

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// guestTable is the table inside a namespace.
const guestTable = "sietch"

// guestRules is the table inside the namespace of n. It translates between the
// constant address that the guest believes in and the one that is unique on the
// host, sends DNS questions to the resolvers, and resets TCP connections that
// it has not seen the beginning of.
func (p *Plumber) guestRules(n Network) ruleset {
	tap := p.opts.TapName
	tapNet := netip.PrefixFrom(p.opts.GatewayAddr, p.opts.PrefixBits).Masked()
	t := table{family: nftables.TableFamilyIPv4, name: guestTable}

	guard := []rule{
		when("not the guest's address", from(tap), saddrNot(p.opts.GuestAddr), drop()),
	}
	// Tracking is told (see sysctls) not to adopt connections half-way, so
	// whatever TCP it calls invalid belongs to none: a clone goes on with
	// connections that were its original's.
	inherited := []rule{
		when("", tracked(known), accept()),
		when("inherited connections", tracked(invalid), layer4(unix.IPPROTO_TCP), resetTCP()),
		when("", tracked(invalid), drop()),
	}
	input := append(inherited[:len(inherited):len(inherited)],
		when("", from("lo"), accept()),
		when("", from(tap), layer4(unix.IPPROTO_ICMP), accept()),
		when("", from(tap), jump("refuse")),
	)
	forward := inherited

	var nat []chain
	if n.Mode == None {
		// Nothing can be routed, but being told so beats finding out.
		guard = append(guard, when("", from(tap), daddrNot(p.opts.GatewayAddr), jump("refuse")))
	} else {
		guard = append(guard,
			when("", from(uplinkName), saddrIn(tapNet), drop()),
			when("", from(uplinkName), daddrIn(tapNet), drop()),
		)
		forward = append(forward[:len(forward):len(forward)], p.egress(n)...)
		forward = append(forward, when("", from(uplinkName), to(tap), forwarded(), accept()))
		dnat := []rule{when("", from(uplinkName), daddr(n.Addr), dnatTo(p.opts.GuestAddr))}
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			for i, u := range n.Upstream {
				// Resolvers take turns, so that a second try reaches another one.
				dnat = append(dnat, when("", from(tap), daddr(p.opts.GatewayAddr), layer4(proto), dport(53), oneIn(len(n.Upstream)-i), dnatTo(u)))
			}
		}
		nat = []chain{
			base("incoming", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest, dnat...),
			base("outgoing", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource,
				when("", to(uplinkName), snatTo(n.Addr)),
			),
		}
	}
	in := base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter, input...)
	fwd := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter, forward...)
	in.drop, fwd.drop = true, true
	if n.TapOwner != 0 {
		// Who holds the tap speaks for the guest through it, and in no other way:
		// a VMM that was taken over gets no further than its guest.
		nat = append(nat, base("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter,
			when("the VMM itself", sentBy(n.TapOwner), drop()),
		))
	}
	t.chains = append([]chain{
		refuse(),
		base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, guard...),
		in, fwd,
	}, nat...)
	return ruleset{tables: []table{t}}
}

// egress says again what the host's guard chain says, as far as it is known in
// here. Whoever flushes the host's rules, and reloading a firewall does, does
// not open the way to other guests and to cloud metadata.
func (p *Plumber) egress(n Network) []rule {
	out := join(from(p.opts.TapName), to(uplinkName))
	var rules []rule
	closed := []netip.Prefix{p.pool, linkLocal}
	for _, c := range closed {
		for _, u := range n.Upstream {
			if c.Contains(u) {
				for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
					rules = append(rules, when("", out, daddr(u), layer4(proto), dport(53), accept()))
				}
			}
		}
		rules = append(rules, when("", out, daddrIn(c), jump("refuse")))
	}
	return append(rules, when("", out, accept()))
}
