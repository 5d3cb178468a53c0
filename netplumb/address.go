package netplumb

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// blockBits is how much of the pool one instance takes.
const blockBits = 20

var defaultPool = netip.MustParsePrefix("10.213.0.0/16")

// blockOf returns the block of the pool that a lies in, as the address of its
// bridge.
func (p *Plumber) blockOf(a netip.Addr) (netip.Prefix, error) {
	if !p.pool.Contains(a) {
		return netip.Prefix{}, fmt.Errorf("address %s is outside the pool %s: %w", a, p.pool, ErrAddr)
	}
	block := netip.PrefixFrom(a, p.blockBits).Masked()
	gateway := netip.PrefixFrom(block.Addr().Next(), p.blockBits)
	if a == block.Addr() || a == gateway.Addr() || a == lastAddr(block) {
		return netip.Prefix{}, fmt.Errorf("address %s is reserved in %s: %w", a, block, ErrAddr)
	}
	return gateway, nil
}

// freeBlock chooses the block of a new bridge: that of the addresses handed out
// before, else one that depends on the instance, so that two instances that
// start together rarely choose the same.
func (p *Plumber) freeBlock(taken []netip.Addr, occupied []netip.Prefix) (netip.Prefix, error) {
	free := func(b netip.Prefix) bool { return !slices.ContainsFunc(occupied, b.Overlaps) }
	for _, a := range taken {
		if b, err := p.blockOf(a); err == nil && free(b) {
			return b, nil
		}
	}
	n := 1 << (p.blockBits - p.pool.Bits())
	h := fnv.New32a()
	h.Write([]byte(p.names.instance))
	for i := range n {
		k := (int(h.Sum32()%uint32(n)) + i) % n
		first := addrAt(p.pool.Masked().Addr(), k<<(32-p.blockBits))
		if b := netip.PrefixFrom(first.Next(), p.blockBits); free(b) {
			return b, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("every /%d of %s overlaps a route or address of this host: %w", p.blockBits, p.pool, ErrExhausted)
}

// FreeAddr returns an address for a new sandbox that is neither in taken nor in
// use on the host. taken should hold the addresses of all sandboxes of the
// instance, stopped ones too: the instance then stays in one block. It reserves
// nothing; Up does, and fails with ErrAddr when somebody was faster.
func (p *Plumber) FreeAddr(taken []netip.Addr) (netip.Addr, error) {
	if err := p.usable(); err != nil {
		return netip.Addr{}, err
	}
	ctx := context.Background()
	w, err := p.kernel.shared(ctx)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find free address: %w", err)
	}
	block := w.bridge.prefix
	if !block.IsValid() {
		occupied, err := p.kernel.occupied(ctx)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("find free address: %w", err)
		}
		if block, err = p.freeBlock(taken, occupied); err != nil {
			return netip.Addr{}, fmt.Errorf("find free address: %w", err)
		}
	}
	used := make(map[netip.Addr]bool, len(taken))
	for _, a := range taken {
		used[a] = true
	}
	for _, c := range w.cells {
		for _, e := range c.elements {
			used[e.addr] = true
		}
	}
	// A random place to start keeps an address that was given back from being
	// handed out while peers still remember its connections, and two commands
	// that choose at the same moment from choosing the same.
	size := 1 << (32 - block.Bits())
	start := rand.IntN(size)
	for i := range size {
		a := addrAt(block.Masked().Addr(), (start+i)%size)
		if _, err := p.blockOf(a); err == nil && !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("find free address in %s: %w", block.Masked(), ErrExhausted)
}

func addrAt(first netip.Addr, offset int) netip.Addr {
	b := first.As4()
	n := binary.BigEndian.Uint32(b[:]) + uint32(offset)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func lastAddr(p netip.Prefix) netip.Addr {
	return addrAt(p.Masked().Addr(), 1<<(32-p.Bits())-1)
}
