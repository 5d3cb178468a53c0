package netplumb

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// This file is the vocabulary that rules are written in. A part is a piece of a
// rule; every matching part ends the rule for packets that do not match.

type part []expr.Any

func when(comment string, parts ...part) rule {
	r := rule{comment: comment}
	for _, p := range parts {
		r.exprs = append(r.exprs, p...)
	}
	return r
}

func join(parts ...part) part {
	var p part
	for _, q := range parts {
		p = append(p, q...)
	}
	return p
}

// concat pads each field of a key or value to the 4 bytes of a register.
func concat(fields ...[]byte) []byte {
	var b []byte
	for _, f := range fields {
		b = append(b, f...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}

func be16(n uint16) []byte     { return binary.BigEndian.AppendUint16(nil, n) }
func native32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Registers for concatenated keys: 4 bytes each, the first two also the halves
// of what a map returns.
const (
	reg1 = unix.NFT_REG_1
	reg2 = unix.NFT_REG32_01
	reg3 = unix.NFT_REG32_02
)

func meta(k expr.MetaKey, reg uint32) expr.Any { return &expr.Meta{Key: k, Register: reg} }

func equal(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: b} }

func differs(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: b} }

// ifname is compared with its NUL, so that a name does not match longer ones.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func from(iface string) part    { return part{meta(expr.MetaKeyIIFNAME, reg1), equal(ifname(iface))} }
func notFrom(iface string) part { return part{meta(expr.MetaKeyIIFNAME, reg1), differs(ifname(iface))} }
func to(iface string) part      { return part{meta(expr.MetaKeyOIFNAME, reg1), equal(ifname(iface))} }

// fromAny, toAny and notToAny match every interface whose name begins so.
func fromAny(prefix string) part { return part{meta(expr.MetaKeyIIFNAME, reg1), equal([]byte(prefix))} }
func toAny(prefix string) part   { return part{meta(expr.MetaKeyOIFNAME, reg1), equal([]byte(prefix))} }
func notToAny(prefix string) part {
	return part{meta(expr.MetaKeyOIFNAME, reg1), differs([]byte(prefix))}
}

func fromSet(set string) part {
	return part{meta(expr.MetaKeyIIFNAME, reg1), &expr.Lookup{SourceRegister: reg1, SetName: set}}
}

// sentBy matches what a socket of that user sends.
func sentBy(uid int) part { return part{meta(expr.MetaKeySKUID, reg1), equal(native32(uint32(uid)))} }

func layer4(proto byte) part { return part{meta(expr.MetaKeyL4PROTO, reg1), equal([]byte{proto})} }

// Loads of header fields; the caller has made sure of the protocol.
func loadSaddr(reg uint32) expr.Any { return networkField(reg, 12, 4) }
func loadDaddr(reg uint32) expr.Any { return networkField(reg, 16, 4) }

func networkField(reg, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func loadDport(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

func saddrNot(a netip.Addr) part { return part{loadSaddr(reg1), differs(a.AsSlice())} }
func daddrNot(a netip.Addr) part { return part{loadDaddr(reg1), differs(a.AsSlice())} }
func daddr(a netip.Addr) part    { return part{loadDaddr(reg1), equal(a.AsSlice())} }

func daddrIn(p netip.Prefix) part {
	return part{loadDaddr(reg1), mask(p), equal(p.Masked().Addr().AsSlice())}
}
func saddrIn(p netip.Prefix) part {
	return part{loadSaddr(reg1), mask(p), equal(p.Masked().Addr().AsSlice())}
}

func mask(p netip.Prefix) expr.Any {
	m := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: m, Xor: make([]byte, 4)}
}

func dport(n uint16) part { return part{loadDport(reg1), equal(binary.BigEndian.AppendUint16(nil, n))} }

// tracked matches connection tracking states, any of the bits given.
func tracked(bits uint32) part { return ctBits(expr.CtKeySTATE, bits) }

// forwarded matches connections whose destination was translated.
func forwarded() part { return ctBits(expr.CtKeySTATUS, ctStatusDNAT) }

const (
	ctStatusDNAT = 1 << 5 // IPS_DST_NAT
	known        = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	invalid      = expr.CtStateBitINVALID
)

func ctBits(key expr.CtKey, bits uint32) part {
	return part{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: native32(bits), Xor: make([]byte, 4)},
		differs(make([]byte, 4)),
	}
}

// Routing's opinion of an address: is it the host's own, or not one machine's.
func daddrNotLocal() part {
	return fib(&expr.Fib{FlagDADDR: true}, expr.CmpOpNeq, unix.RTN_LOCAL)
}
func daddrNotUnicast() part {
	return fib(&expr.Fib{FlagDADDR: true}, expr.CmpOpNeq, unix.RTN_UNICAST)
}
func saddrLocal() part { return fib(&expr.Fib{FlagSADDR: true}, expr.CmpOpEq, unix.RTN_LOCAL) }

func fib(f *expr.Fib, op expr.CmpOp, kind uint32) part {
	f.Register, f.ResultADDRTYPE = reg1, true
	return part{f, &expr.Cmp{Op: op, Register: reg1, Data: native32(kind)}}
}

func saddrInSet(set string) part {
	return part{loadSaddr(reg1), &expr.Lookup{SourceRegister: reg1, SetName: set}}
}

func saddrNotInSet(set string) part {
	return part{loadSaddr(reg1), &expr.Lookup{SourceRegister: reg1, SetName: set, Invert: true}}
}

func daddrNotInSet(set string) part {
	return part{loadDaddr(reg1), &expr.Lookup{SourceRegister: reg1, SetName: set, Invert: true}}
}

// pairInSet matches source and destination together.
func pairInSet(set string) part {
	return part{loadSaddr(reg1), loadDaddr(reg2), &expr.Lookup{SourceRegister: reg1, SetName: set}}
}

// Ends of a rule.

func accept() part           { return part{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() part             { return part{&expr.Verdict{Kind: expr.VerdictDrop}} }
func jump(chain string) part { return part{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }
func masquerade() part       { return part{&expr.Masq{}} }

func resetTCP() part { return part{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

func prohibit() part {
	const adminProhibited = 13 // ICMP_PKT_FILTERED
	return part{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: adminProhibited}}
}

// dnatFrom sends the packet where the map says. The key parts have been loaded
// into consecutive registers from reg1 on.
func dnatFrom(m string) part {
	return part{
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: m},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1, RegProtoMin: reg2},
	}
}

func dnatTo(a netip.Addr) part { return natTo(expr.NATTypeDestNAT, a) }
func snatTo(a netip.Addr) part { return natTo(expr.NATTypeSourceNAT, a) }

func natTo(t expr.NATType, a netip.Addr) part {
	return part{
		&expr.Immediate{Register: reg1, Data: a.AsSlice()},
		&expr.NAT{Type: t, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1},
	}
}

// oneIn matches the first of every n packets that get this far.
func oneIn(n int) part {
	if n == 1 {
		return nil
	}
	return part{
		&expr.Numgen{Register: reg1, Modulus: uint32(n), Type: unix.NFT_NG_INCREMENTAL},
		equal(make([]byte, 4)),
	}
}

// refuse is a chain that answers, so that clients fail at once.
func refuse() chain {
	return chain{name: "refuse", rules: []rule{
		when("", layer4(unix.IPPROTO_TCP), resetTCP()),
		when("", prohibit()),
	}}
}

func base(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, rules ...rule) chain {
	return chain{name: name, kind: kind, hook: hook, priority: priority, rules: rules}
}
