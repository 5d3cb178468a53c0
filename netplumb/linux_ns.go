package netplumb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	goruntime "runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// open opens the namespace of a sandbox, or returns ErrNotFound.
func (k *linux) open(id string) (*os.File, error) {
	f, err := os.Open(k.names.nsPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return f, err
}

// routeIn is a route socket inside a namespace.
func routeIn(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route socket: %w", err)
	}
	return h, nil
}

// onThread runs fn on a thread that enter has moved to another namespace and
// moves it back. A thread that cannot be moved back ends with its goroutine.
func onThread(enter, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("function ended its goroutine")
		defer func() { done <- err }()
		goruntime.LockOSThread()
		home, herr := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if herr == nil {
			defer unix.Close(home)
			herr = enter()
		}
		if herr != nil {
			err = herr
			goruntime.UnlockOSThread() // still where it was
			return
		}
		defer func() {
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				goruntime.UnlockOSThread()
			}
		}()
		err = fn()
	}()
	return <-done
}

func (k *linux) enter(id string, fn func() error) error {
	ns, err := k.open(id)
	if err != nil {
		return fmt.Errorf("enter namespace of %s: %w", id, err)
	}
	defer ns.Close()
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace of %s: %w", id, err)
		}
		return nil
	}, fn)
}

func (k *linux) observeNamespace(id string) (nsState, error) {
	var st unix.Statfs_t
	err := unix.Statfs(k.names.nsPath(id), &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nsNone, nil
	case err != nil:
		return nsNone, fmt.Errorf("look at namespace of %s: %w", id, err)
	case st.Type != unix.NSFS_MAGIC:
		return nsStale, nil
	}
	return nsThere, nil
}

// observeInside fills in what of c lies in the namespace.
func (k *linux) observeInside(id string, c *cell) error {
	ns, err := k.open(id)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := routeIn(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	tap, err := linkByName(h, k.opts.TapName)
	if err != nil {
		return err
	}
	if tap != nil {
		p, err := firstPrefix(h, tap)
		if err != nil {
			return err
		}
		c.tap = p.Addr() == k.opts.GatewayAddr
		if t, ok := tap.(*netlink.Tuntap); ok {
			c.tapOwner = int(t.Owner)
		}
	}
	if c.veth {
		if c.link, err = k.observeUplink(h, id); err != nil {
			return err
		}
	}
	c.rules, err = markInside(ns)
	return err
}

// observeUplink returns the address of a veth that is joined to the bridge and
// finished, and an invalid one otherwise. The default route is the last thing
// that makeVeth does.
func (k *linux) observeUplink(in *netlink.Handle, id string) (netip.Addr, error) {
	var none netip.Addr
	host, err := k.route()
	if err != nil {
		return none, err
	}
	defer host.Close()
	br, err := linkByName(host, k.names.bridge())
	if br == nil || err != nil {
		return none, err
	}
	veth, err := linkByName(host, k.names.veth(id))
	if veth == nil || err != nil || veth.Attrs().MasterIndex != br.Attrs().Index {
		return none, err
	}
	up, err := linkByName(in, uplinkName)
	if up == nil || err != nil {
		return none, err
	}
	routes, err := retryDump(func() ([]netlink.Route, error) { return in.RouteList(up, netlink.FAMILY_V4) })
	if len(routes) == 0 || err != nil {
		return none, err
	}
	p, err := firstPrefix(in, up)
	return p.Addr(), err
}

// nsSysctls are set inside a new namespace before any interface is made.
var nsSysctls = []struct {
	file, value string
	optional    bool // a kernel without IPv6
}{
	{"/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv4/ip_forward", "1", false},
}

// trackingSysctls exist once connection tracking is loaded, which the rules
// see to.
var trackingSysctls = []struct{ file, value string }{
	// A connection is tracked from its first packet or not at all.
	{"/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0"},
	// Packets out of a known connection's window stay part of it: the rules
	// reset what is invalid, and that must be unknown connections alone.
	{"/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1"},
}

func (k *linux) makeNamespace(ctx context.Context, id string) (err error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	path := k.names.nsPath(id)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	f.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, removeNamespaceFile(path))
		}
	}()
	if err := k.shareNetnsDir(ctx); err != nil { // with the file there, see tidy
		return err
	}
	return onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		for _, s := range nsSysctls {
			err := writeSysctl(s.file, s.value)
			if err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
				return err
			}
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		// The loopback of a namespace is its first interface, always index 1.
		return h.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}})
	})
}

func removeNamespaceFile(path string) error {
	// EINVAL: nothing is mounted there. Several mounts can be, when makers were
	// racing, so go on until there is none.
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// vethGone is how long the kernel may take to remove the interfaces of a
// namespace after its last user has gone. Removing the veth by hand is the
// other way, and needed when a process still sits in there, but it makes the
// caller wait for each one alone where the kernel handles many at once.
const vethGone = 100 * time.Millisecond

func (k *linux) dropNamespace(ctx context.Context, id string) error {
	if err := removeNamespaceFile(k.names.nsPath(id)); err != nil {
		return err
	}
	deadline := time.Now().Add(vethGone)
	for wait := 500 * time.Microsecond; time.Now().Before(deadline); wait = min(2*wait, 10*time.Millisecond) {
		there, err := linkExists(k.names.veth(id))
		if !there || err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return k.dropLink(k.names.veth(id))
}

// makeTap makes the tap that the VMM attaches to, or gives an existing one to
// another owner.
func (k *linux) makeTap(id string, owner int) error {
	ns, err := k.open(id)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := k.enter(id, func() error { return persistentTap(k.opts.TapName, owner) }); err != nil {
		return err
	}
	h, err := routeIn(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	tap, err := h.LinkByName(k.opts.TapName)
	if err != nil {
		return err
	}
	if err := h.LinkSetHardwareAddr(tap, k.opts.GatewayMAC); err != nil {
		return fmt.Errorf("set hardware address: %w", err)
	}
	if err := h.LinkSetUp(tap); err != nil {
		return err
	}
	// The guest's address is constant: nobody has to ask for it, and a clone
	// can be sent to before it has said anything.
	guest := &netlink.Neigh{LinkIndex: tap.Attrs().Index, IP: k.opts.GuestAddr.AsSlice(), HardwareAddr: k.opts.GuestMAC, State: netlink.NUD_PERMANENT}
	if err := h.NeighSet(guest); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	if err := h.AddrReplace(tap, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(k.opts.GatewayAddr, k.opts.PrefixBits))}); err != nil {
		return fmt.Errorf("set address: %w", err)
	}
	return nil
}

func persistentTap(name string, owner int) error {
	const dev = "/dev/net/tun"
	fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dev, Err: err}
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	// One queue and a virtio header, as VMMs attach; they may change the latter.
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("attach to tap: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, owner); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make tap persistent: %w", err)
	}
	return nil
}
