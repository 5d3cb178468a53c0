package netplumb

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A packet is forwarded when the interface it came in on says so. The bridge is
// ours and says so always; replies from the outside come in on interfaces that
// are not. Where the host does not forward at all, those are turned on one by
// one instead of net.ipv4.ip_forward, and each is written down first: in the set
// of uplinks, which is what makes the forward chain drop traffic that is not for
// us, and as a file, which outlives a reload of the host's firewall. Whoever
// removes the last network finds there what to turn off.

// forwardingDir holds an empty file INSTANCE-INTERFACE for each interface that
// an instance turned on. It is gone after a boot, as the setting is.
var forwardingDir = filepath.Join(filepath.Dir(lockPath), "forwarding")

const (
	ipForward  = "/proc/sys/net/ipv4/ip_forward"
	forwarding = "ipv4/forwarding"
)

// observeForwarding fills in needed: the interfaces that have to forward and do
// so, if at all, only because an instance turned them on. held are those that
// one did. An uplink that does not forward after all, because a process died
// half-way or somebody turned it off, is no uplink but remains recorded.
func (k *linux) observeForwarding(h *netlink.Handle, held []string, w *world) error {
	w.recorded = union(w.recorded, w.uplinks)
	held = union(held, w.recorded)
	all, err := readSysctl(ipForward)
	if err != nil || all != "0" {
		return err // the host forwards for reasons of its own
	}
	routes, err := retryDump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return err
	}
	var indexes []int
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		indexes = append(indexes, r.LinkIndex)
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	slices.Sort(indexes)
	for _, i := range slices.Compact(indexes) {
		l, err := h.LinkByIndex(i)
		if err != nil {
			continue // index 0 of a route without a device, or one just gone
		}
		name := l.Attrs().Name
		if name == "lo" || strings.HasPrefix(name, bridgePrefix) {
			continue
		}
		v, err := readSysctl(ifaceSysctl(forwarding, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if v == "0" {
			w.uplinks = missing(w.uplinks, []string{name})
		}
		if v == "0" || slices.Contains(held, name) {
			w.needed = append(w.needed, name)
		}
	}
	slices.Sort(w.needed)
	return nil
}

func (k *linux) holdForwarding(iface string) (err error) {
	if err := os.MkdirAll(forwardingDir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.changeUplink(iface, false), k.forgetForwarding(iface))
		}
	}()
	if err := os.WriteFile(k.forwardingFile(iface), nil, 0o600); err != nil {
		return err
	}
	if err := k.changeUplink(iface, true); err != nil {
		return err
	}
	return writeSysctl(ifaceSysctl(forwarding, iface), "1")
}

// dropForwarding puts an interface back, unless another instance needs it or
// the host has begun to forward by itself. With last, the tables go next and
// take their record along.
func (k *linux) dropForwarding(iface string, last bool) error {
	others, err := k.heldByOthers()
	if err != nil {
		return err
	}
	all, err := readSysctl(ipForward)
	if err != nil {
		return err
	}
	if all == "0" && !slices.Contains(others, iface) {
		err := writeSysctl(ifaceSysctl(forwarding, iface), "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the interface may be gone
			return err
		}
	}
	if !last {
		if err := k.changeUplink(iface, false); err != nil {
			return err
		}
	}
	return k.forgetForwarding(iface)
}

func (k *linux) forwardingFile(iface string) string {
	return filepath.Join(forwardingDir, k.names.instance+"-"+iface)
}

func (k *linux) forgetForwarding(iface string) error {
	err := os.Remove(k.forwardingFile(iface))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// forwardingFiles lists the interfaces on record for this instance and for
// those others that still have a bridge.
func (k *linux) forwardingFiles() (own, others []string, err error) {
	files, err := os.ReadDir(forwardingDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		instance, iface, ok := strings.Cut(f.Name(), "-")
		if !ok {
			continue
		}
		if instance == k.names.instance {
			own = append(own, iface)
			continue
		}
		alive, err := linkExists(bridgePrefix + instance)
		if err != nil {
			return nil, nil, err
		}
		if alive {
			others = append(others, iface)
		}
	}
	return own, others, nil
}
