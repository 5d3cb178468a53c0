package netplumb

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Sets and maps of the host's tables. Everything about a single sandbox is an
// element of one of them, so that one more costs the same however many there
// are. They have a size each, which makes the kernel choose hash tables that are
// never rearranged while somebody lists them.
const (
	setMembers   = "members"   // bridge table: interface . address it may use
	setAddresses = "addresses" // ip table, like those below: addresses in use
	setResolvers = "resolvers" // address . resolver it may ask
	setUplinks   = "uplinks"   // interfaces that forward because of us
	mapPorts     = "ports"     // protocol . port → address . port
	mapPortsAt   = "ports_at"  // host address . protocol . port → address . port

	maxSandboxes = 1 << (32 - blockBits) // addresses of a block
	maxPorts     = 1 << 14
)

var (
	loopback  = netip.MustParsePrefix("127.0.0.0/8")
	linkLocal = netip.MustParsePrefix("169.254.0.0/16") // cloud metadata lives here
	broadcast = netip.MustParseAddr("255.255.255.255")
)

// hostRules are the two tables of an instance on the host: one sees what comes
// off the bridge's ports, the other what is routed.
//
// Chains of other tables see the same packets: an accept here lets a packet
// past this table alone, a drop is final. So these rules can forbid but never
// open what the host's own firewall closes.
//
// There is no table for IPv6: the bridge's ports let none in, and neither the
// bridge nor the namespaces speak it.
func hostRules(n names) ruleset {
	return ruleset{tables: []table{bridgeTable(n), ipTable(n)}}
}

// bridgeTable lets a veth send from its own address only. Frames of other
// protocols than IPv4 and ARP never enter.
func bridgeTable(n names) table {
	ours := fromAny(n.veths)
	protocol := func(p uint16) part {
		return part{meta(expr.MetaKeyPROTOCOL, reg1), equal([]byte{byte(p >> 8), byte(p)})}
	}
	own := func(addr expr.Any) part {
		// The name takes four registers, the address the fifth.
		return part{meta(expr.MetaKeyIIFNAME, reg1), addr, &expr.Lookup{SourceRegister: reg1, SetName: setMembers}}
	}
	const fifth = unix.NFT_REG32_04
	return table{
		family: nftables.TableFamilyBridge,
		name:   n.table(),
		sets: []nftables.Set{{
			Name:          setMembers,
			KeyType:       nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr),
			Concatenation: true,
			Size:          maxSandboxes,
		}},
		chains: []chain{
			// Ahead of everything else that looks at bridged frames.
			base("spoofed", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -300,
				when("", ours, protocol(unix.ETH_P_IP), own(loadSaddr(fifth)), accept()),
				when("", ours, protocol(unix.ETH_P_ARP), own(networkField(fifth, 14, 4)), accept()),
				when("not the sandbox's own address", ours, drop()),
			),
		},
	}
}

func ipTable(n names) table {
	br := n.bridge()
	target := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	dns := func(proto byte) part {
		return join(layer4(proto), dport(53), pairInSet(setResolvers), accept())
	}
	// Rules that translate the destination of packets for the host's own
	// addresses, by the address they were sent to first.
	forwards := []rule{
		when("", part{loadDaddr(reg1), meta(expr.MetaKeyL4PROTO, reg2), loadDport(reg3)}, dnatFrom(mapPortsAt)),
		when("", part{meta(expr.MetaKeyL4PROTO, reg1), loadDport(reg2)}, dnatFrom(mapPorts)),
	}
	return table{
		family: nftables.TableFamilyIPv4,
		name:   n.table(),
		sets: []nftables.Set{
			{Name: setAddresses, KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian, Size: maxSandboxes},
			{Name: setResolvers, KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr), Concatenation: true, Size: maxSandboxes * maxResolvers},
			{Name: setUplinks, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian, Size: 256},
			{Name: mapPorts, KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), DataType: target, IsMap: true, Concatenation: true, Size: maxPorts},
			{Name: mapPortsAt, KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService), DataType: target, IsMap: true, Concatenation: true, Size: maxPorts},
		},
		chains: []chain{
			refuse(),

			// What a guest may address at all is decided here, before anybody
			// translates the destination: neither we nor another program can
			// turn an address of the host into something that looks foreign.
			base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityMangle,
				when("", notFrom(br), accept()),
				when("", saddrNotInSet(setAddresses), drop()),
				// The bridge routes 127.0.0.0/8 for the sake of forwarded ports.
				when("loopback is the host's", daddrIn(loopback), drop()),
				when("", tracked(known), accept()),
				when("", tracked(invalid), drop()),
				when("", dns(unix.IPPROTO_UDP)),
				when("", dns(unix.IPPROTO_TCP)),
				when("cloud metadata", daddrIn(linkLocal), jump("refuse")),
				when("", daddr(broadcast), drop()),
				when("the host itself", daddrNotUnicast(), jump("refuse")),
			),

			base("incoming", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest, append([]rule{
				when("guests do not use forwarded ports", fromAny(bridgePrefix), accept()),
				// A neighbour can send to 127.0.0.1 and would be let in if the
				// destination were translated before routing had seen it.
				when("", notFrom("lo"), daddrIn(loopback), accept()),
				when("", daddrNotLocal(), accept()),
			}, forwards...)...),

			base("local", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest, append([]rule{
				when("", daddrNotLocal(), accept()),
			}, forwards...)...),

			base("outgoing", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource,
				when("the host's own connections to forwarded ports", to(br), saddrLocal(), masquerade()),
				when("", notToAny(bridgePrefix), saddrInSet(setAddresses), masquerade()),
			),

			base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter,
				when("", notFrom(br), accept()),
				when("", tracked(known), accept()),
				when("", dns(unix.IPPROTO_UDP)),
				when("", dns(unix.IPPROTO_TCP)),
				when("the host itself", jump("refuse")),
			),

			base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter,
				when("", from(br), tracked(known), accept()),
				when("guests of any instance", from(br), toAny(bridgePrefix), jump("refuse")),
				when("", from(br), accept()),
				when("", to(br), daddrNotInSet(setAddresses), jump("refuse")),
				when("", to(br), tracked(known), accept()),
				when("", to(br), forwarded(), accept()),
				when("guests are not routed to", to(br), jump("refuse")),
				// Interfaces that forward because of us do so for us alone. What
				// another program translated is its own affair.
				when("", fromSet(setUplinks), toAny(bridgePrefix), accept()),
				when("", fromSet(setUplinks), tracked(known), accept()),
				when("", fromSet(setUplinks), forwarded(), accept()),
				when("the host is no router", fromSet(setUplinks), drop()),
			),
		},
	}
}

// entry is an element as the tables hold it.
type entry struct {
	family nftables.TableFamily
	set    string
	value  nftables.SetElement
}

// entries are where e goes in the tables.
func (n names) entries(id string, e element) []entry {
	const ip = nftables.TableFamilyIPv4
	addr := e.addr.AsSlice()
	switch e.kind {
	case member:
		return []entry{
			{nftables.TableFamilyBridge, setMembers, nftables.SetElement{Key: concat(ifname(n.veth(id)), addr)}},
			{ip, setAddresses, nftables.SetElement{Key: addr}},
		}
	case resolver:
		return []entry{{ip, setResolvers, nftables.SetElement{Key: concat(addr, e.peer.AsSlice())}}}
	case port:
		key := concat([]byte{protoNumber(e.port.Protocol)}, be16(e.port.Host))
		val := concat(addr, be16(e.port.Guest))
		if e.port.HostIP.IsUnspecified() {
			return []entry{{ip, mapPorts, nftables.SetElement{Key: key, Val: val}}}
		}
		return []entry{{ip, mapPortsAt, nftables.SetElement{Key: concat(e.port.HostIP.AsSlice(), key), Val: val}}}
	}
	return nil
}

// parsePort reads an element of one of the port maps back. It is not ok if
// another version wrote it in another form.
func parsePort(set string, se nftables.SetElement) (e element, ok bool) {
	e.kind = port
	e.port.HostIP = netip.IPv4Unspecified()
	key := se.Key
	if set == mapPortsAt && len(key) == 12 {
		e.port.HostIP = netip.AddrFrom4([4]byte(key[:4]))
		key = key[4:]
	}
	if len(key) != 8 || len(se.Val) != 8 {
		return element{}, false
	}
	e.port.Protocol = TCP
	if key[0] == unix.IPPROTO_UDP {
		e.port.Protocol = UDP
	}
	e.port.Host = uint16(key[4])<<8 | uint16(key[5])
	e.addr = netip.AddrFrom4([4]byte(se.Val[:4]))
	e.port.Guest = uint16(se.Val[4])<<8 | uint16(se.Val[5])
	return e, true
}

func protoNumber(p string) byte {
	if p == UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}
