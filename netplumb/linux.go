package netplumb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linux is the kernel this process runs on. The host is the namespace that the
// process was started in. Nothing is kept open between calls: a descriptor of a
// namespace would keep it alive.
type linux struct {
	opts    Options
	names   names
	rules   ruleset // of the host
	mark    string  // their fingerprint
	lock    *hostLock
	closing sync.WaitGroup // sockets on their way out, see nft
}

var _ kernel = (*linux)(nil)

func newLinux(o Options, n names, lock *hostLock) *linux {
	k := &linux{opts: o, names: n, rules: hostRules(n), lock: lock}
	k.mark = k.rules.fingerprint()
	return k
}

func (k *linux) close() { k.closing.Wait() }

// route returns a socket for links, addresses and routes of the host.
func (k *linux) route() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route socket: %w", err)
	}
	return h, nil
}

func (k *linux) tables(ctx context.Context) (world, error) {
	w := world{cells: map[string]cell{}}
	if _, err := k.observeTables(&w); err != nil {
		return world{}, fmt.Errorf("look at host rules: %w", err)
	}
	return w, nil
}

func (k *linux) shared(ctx context.Context) (world, error) {
	w := world{cells: map[string]cell{}}
	h, err := k.route()
	if err != nil {
		return world{}, err
	}
	defer h.Close()
	if w.bridge, err = k.observeBridge(h); err != nil {
		return world{}, fmt.Errorf("look at bridge: %w", err)
	}
	held, err := k.observeTables(&w)
	if err != nil {
		return world{}, fmt.Errorf("look at host rules: %w", err)
	}
	if err := k.observeForwarding(h, held, &w); err != nil {
		return world{}, fmt.Errorf("look at forwarding: %w", err)
	}
	return w, nil
}

func (k *linux) cell(ctx context.Context, id string) (c cell, err error) {
	if c.veth, err = linkExists(k.names.veth(id)); err != nil {
		return cell{}, fmt.Errorf("look at veth of %s: %w", id, err)
	}
	if c.ns, err = k.observeNamespace(id); err != nil || c.ns != nsThere {
		return c, err
	}
	if err := k.observeInside(id, &c); err != nil {
		return cell{}, fmt.Errorf("look inside namespace of %s: %w", id, err)
	}
	return c, nil
}

func (k *linux) ids(ctx context.Context) ([]string, error) {
	var ids []string
	files, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if id, ok := k.names.netnsID(f.Name()); ok {
			ids = append(ids, id)
		}
	}
	h, err := k.route()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := retryDump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if id, ok := k.names.vethID(l.Attrs().Name); ok && l.Type() == "veth" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func (k *linux) occupied(ctx context.Context) ([]netip.Prefix, error) {
	h, err := k.route()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	addrs, err := retryDump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := retryDump(func() ([]netlink.Route, error) {
		// Table 0 with this filter means every table.
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	// Asked last: a bridge that is made in between must not look like a stranger's.
	own := 0
	if br, err := linkByName(h, k.names.bridge()); err != nil {
		return nil, err
	} else if br != nil {
		own = br.Attrs().Index
	}
	var used []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && a.LinkIndex != own {
			used = append(used, p)
		}
	}
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if ok && p.Bits() > 0 && r.LinkIndex != own && r.Type != unix.RTN_BROADCAST {
			used = append(used, p)
		}
	}
	return used, nil
}

func (k *linux) apply(ctx context.Context, s step) error {
	switch s.verb {
	case makeTables:
		return k.makeTables(s.uplinks, !s.fresh)
	case dropTables:
		return k.dropTables()
	case makeBridge:
		return k.makeBridge(s.prefix)
	case dropBridge:
		return k.dropLink(k.names.bridge())
	case holdForwarding:
		return k.holdForwarding(s.iface)
	case dropForwarding:
		return k.dropForwarding(s.iface, s.last)
	case changeElements:
		return k.changeElements(s.id, s.add, s.del)
	case makeNamespace:
		return k.makeNamespace(ctx, s.id)
	case dropNamespace:
		return k.dropNamespace(ctx, s.id)
	case makeTap:
		return k.makeTap(s.id, s.net.TapOwner)
	case makeRules:
		return k.makeRules(s.id, s.rules, !s.fresh)
	case makeVeth:
		return k.makeVeth(s.id, s.net.Addr, s.prefix)
	case dropVeth:
		return k.dropLink(k.names.veth(s.id))
	}
	return fmt.Errorf("unknown step %d", s.verb)
}

// retryDump repeats a listing that another process's change interrupted.
func retryDump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		v, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == 10 {
			return v, err
		}
	}
}
