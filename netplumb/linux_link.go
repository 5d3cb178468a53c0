package netplumb

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkByName returns nil for a link that does not exist.
func linkByName(h *netlink.Handle, name string) (netlink.Link, error) {
	l, err := h.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	return l, err
}

// linkExists asks without the lock that everybody who changes an interface on
// the host holds, while the kernel may be waiting tens of milliseconds.
func linkExists(name string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return false, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req)
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok && a.Unmap().Is4()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func firstPrefix(h *netlink.Handle, l netlink.Link) (netip.Prefix, error) {
	addrs, err := retryDump(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

func (k *linux) observeBridge(h *netlink.Handle) (bridge, error) {
	l, err := linkByName(h, k.names.bridge())
	if l == nil || err != nil {
		return bridge{}, err
	}
	b := bridge{exists: true}
	if b.prefix, err = firstPrefix(h, l); err != nil {
		return bridge{}, err
	}
	// Whoever turns ip_forward off turns it off on every interface. The other
	// settings are nobody's business.
	v, err := readSysctl(ifaceSysctl(forwarding, k.names.bridge()))
	if errors.Is(err, os.ErrNotExist) {
		return bridge{}, nil // just gone
	} else if err != nil {
		return bridge{}, err
	}
	b.ready = b.prefix.IsValid() && l.Attrs().Flags&net.FlagUp != 0 && v == "1"
	return b, nil
}

// bridgeSysctls are set before the bridge is up, under net/FAMILY/conf/BRIDGE.
var bridgeSysctls = []struct {
	name     string
	value    string
	optional bool // a kernel without IPv6
}{
	{"ipv6/disable_ipv6", "1", true},
	{forwarding, "1", false},
	// Forwarded ports answer on 127.0.0.1: the kernel has to route such a
	// source address out of the bridge. What comes in from there for
	// 127.0.0.0/8 is dropped by the guard chain.
	{"ipv4/route_localnet", "1", false},
}

func (k *linux) makeBridge(prefix netip.Prefix) (err error) {
	h, err := k.route()
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = k.names.bridge()
	// Without an address of its own a bridge takes that of a port and changes
	// it as ports come and go.
	attrs.HardwareAddr = k.names.bridgeMAC()
	br := &netlink.Bridge{LinkAttrs: attrs}
	err = h.LinkAdd(br)
	if err == nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, k.dropLink(attrs.Name))
			}
		}()
	} else if !errors.Is(err, unix.EEXIST) {
		return err
	}
	for _, s := range bridgeSysctls {
		err := writeSysctl(ifaceSysctl(s.name, attrs.Name), s.value)
		if err != nil && !(s.optional && errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	if err := h.AddrReplace(br, &netlink.Addr{IPNet: ipNet(prefix)}); err != nil {
		return fmt.Errorf("set address: %w", err)
	}
	return h.LinkSetUp(br)
}

// makeVeth joins a namespace to the bridge. The end inside is finished last: its
// default route tells that everything before was done.
func (k *linux) makeVeth(id string, addr netip.Addr, bridge netip.Prefix) (err error) {
	ns, err := k.open(id)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := k.route()
	if err != nil {
		return err
	}
	defer h.Close()
	br, err := h.LinkByName(k.names.bridge())
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = k.names.veth(id)
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         uplinkName,
		PeerHardwareAddr: uplinkMAC(addr),
		PeerNamespace:    netlink.NsFd(int(ns.Fd())),
	}
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.dropLink(attrs.Name))
		}
	}()
	err = writeSysctl(ifaceSysctl("ipv6/disable_ipv6", attrs.Name), "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := h.LinkSetMaster(veth, br); err != nil {
		if errors.Is(err, unix.EXFULL) {
			err = ErrExhausted
		}
		return fmt.Errorf("attach to bridge: %w", err)
	}
	if err := h.LinkSetIsolated(veth, true); err != nil {
		return fmt.Errorf("isolate bridge port: %w", err)
	}
	if err := h.LinkSetUp(veth); err != nil {
		return err
	}

	in, err := routeIn(ns)
	if err != nil {
		return err
	}
	defer in.Close()
	up, err := in.LinkByName(uplinkName)
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(up); err != nil {
		return err
	}
	// No other sandbox is a neighbour: everything goes to the bridge, whose
	// rules answer, rather than to an isolated port where it would get lost.
	gateway := bridge.Addr()
	if err := in.NeighSet(&netlink.Neigh{LinkIndex: up.Attrs().Index, IP: gateway.AsSlice(), HardwareAddr: k.names.bridgeMAC(), State: netlink.NUD_PERMANENT}); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	if err := in.AddrAdd(up, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, 32))}); err != nil {
		return fmt.Errorf("set address: %w", err)
	}
	if err := in.RouteReplace(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: gateway.AsSlice(), Src: addr.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return errors.Join(awaitCarrier(h, veth), awaitCarrier(in, up))
}

// awaitCarrier waits until an interface that came up before its peer did takes
// packets. The kernel activates it a little later, and what is sent until then
// is lost without a word, which costs a connecting client a second.
func awaitCarrier(h *netlink.Handle, l netlink.Link) error {
	for range 100 {
		now, err := h.LinkByIndex(l.Attrs().Index)
		if err != nil || now.Attrs().OperState == netlink.OperUp {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil // slow, not broken
}

func (k *linux) dropLink(name string) error {
	there, err := linkExists(name)
	if !there || err != nil {
		return err
	}
	h, err := k.route()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := linkByName(h, name)
	if l == nil || err != nil {
		return err
	}
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}
