package netplumb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nft returns a connection to the host's tables, for one batch or a few
// questions, and a function that lets go of it.
//
// Closing a netfilter socket waits for the remains of everything removed lately,
// by anybody, to be freed: 5 to 20 ms, and callers hold the lock. So it is
// closed behind their back; close waits for that.
func (k *linux) nft() (*nftables.Conn, func(), error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, func() { k.closing.Go(func() { c.CloseLasting() }) }, nil
}

// nftIn is the same for the tables of a namespace, where nobody else is busy.
func nftIn(ns *os.File) (*nftables.Conn, func(), error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, func() { c.CloseLasting() }, nil
}

// otherVersion stands for the fingerprint of rules that this program would
// write differently.
const otherVersion = "other"

// ownTables returns the fingerprint of the host's tables: empty if there are
// none, and otherVersion if they are not what hostRules says. It asks for each
// object by name: a listing can be interrupted by whoever else changes rules.
func (k *linux) ownTables(c *nftables.Conn) (string, error) {
	mark, missing := k.mark, 0
	for _, t := range k.rules.tables {
		nt, err := c.ListTableOfFamily(t.name, t.family)
		if errors.Is(err, unix.ENOENT) {
			missing++
			continue
		} else if err != nil {
			return "", err
		}
		_, err = c.GetSetByName(nt, markPrefix+k.mark)
		if errors.Is(err, unix.ENOENT) {
			mark = otherVersion
		} else if err != nil {
			return "", err
		}
	}
	switch missing {
	case 0:
		return mark, nil
	case len(k.rules.tables):
		return "", nil
	}
	return otherVersion, nil // somebody removed one
}

// otherTables lists the tables of other instances.
func (k *linux) otherTables(c *nftables.Conn) ([]string, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range tables {
		instance, ok := strings.CutPrefix(t.Name, bridgePrefix)
		if _, err := newNames(instance); ok && err == nil && t.Name != k.names.table() {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// markInside returns the fingerprint of the rules in a namespace.
func markInside(ns *os.File) (string, error) {
	c, release, err := nftIn(ns)
	if err != nil {
		return "", err
	}
	defer release()
	t, err := c.ListTableOfFamily(guestTable, nftables.TableFamilyIPv4)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return "", err
	}
	for _, s := range sets {
		if mark, ok := strings.CutPrefix(s.Name, markPrefix); ok {
			return mark, nil
		}
	}
	return otherVersion, nil
}

// elementsIn lists a set. A table that is not there, or no longer, has none.
func elementsIn(c *nftables.Conn, f nftables.TableFamily, table, set string) ([]nftables.SetElement, error) {
	t := &nftables.Table{Family: f, Name: table}
	es, err := c.GetSetElements(&nftables.Set{Table: t, Name: set})
	if err == nil {
		return es, nil
	}
	if _, gone := c.ListTableOfFamily(table, f); errors.Is(gone, unix.ENOENT) {
		return nil, nil
	}
	return nil, fmt.Errorf("list set %s of table %s: %w", set, table, err)
}

// observeTables fills in tables, uplinks and the elements of cells. It also
// returns the uplinks that other instances hold.
func (k *linux) observeTables(w *world) (held []string, err error) {
	c, release, err := k.nft()
	if err != nil {
		return nil, err
	}
	defer release()
	const ip, br = nftables.TableFamilyIPv4, nftables.TableFamilyBridge
	if held, err = k.uplinksOfOthers(c); err != nil {
		return nil, err
	}
	if w.recorded, _, err = k.forwardingFiles(); err != nil {
		return nil, err
	}
	if w.tables, err = k.ownTables(c); err != nil || w.tables == "" {
		return held, err
	}
	t := k.names.table()
	// Another version may have kept its sets differently. What cannot be read
	// of them is as good as lost; the next Up of each sandbox puts it back.
	list := func(f nftables.TableFamily, set string) ([]nftables.SetElement, error) {
		es, err := elementsIn(c, f, t, set)
		if w.tables == otherVersion {
			return es, nil
		}
		return es, err
	}
	members, err := list(br, setMembers)
	if err != nil {
		return nil, err
	}
	ids := map[netip.Addr]string{}
	for _, e := range members {
		if len(e.Key) != unix.IFNAMSIZ+4 {
			continue
		}
		id, ok := k.names.vethID(unix.ByteSliceToString(e.Key[:unix.IFNAMSIZ]))
		if !ok {
			continue
		}
		a := netip.AddrFrom4([4]byte(e.Key[unix.IFNAMSIZ:]))
		ids[a] = id
		w.cells[id] = cell{elements: append(w.cells[id].elements, element{kind: member, addr: a})}
	}
	add := func(e element) {
		// Elements come and go with their member in one batch, so there is one.
		if id, ok := ids[e.addr]; ok {
			w.cells[id] = cell{elements: append(w.cells[id].elements, e)}
		}
	}
	resolvers, err := list(ip, setResolvers)
	if err != nil {
		return nil, err
	}
	for _, e := range resolvers {
		if len(e.Key) == 8 {
			add(element{kind: resolver, addr: netip.AddrFrom4([4]byte(e.Key[:4])), peer: netip.AddrFrom4([4]byte(e.Key[4:]))})
		}
	}
	for _, m := range []string{mapPorts, mapPortsAt} {
		ports, err := list(ip, m)
		if err != nil {
			return nil, err
		}
		for _, se := range ports {
			if e, ok := parsePort(m, se); ok {
				add(e)
			}
		}
	}
	for id, c := range w.cells {
		slices.SortFunc(c.elements, compareElements)
		w.cells[id] = cell{elements: slices.Compact(c.elements)}
	}
	uplinks, err := list(ip, setUplinks)
	w.uplinks = ifnames(uplinks)
	return held, err
}

func ifnames(es []nftables.SetElement) []string {
	var names []string
	for _, e := range es {
		names = append(names, unix.ByteSliceToString(e.Key))
	}
	slices.Sort(names)
	return names
}

// uplinksOfOthers lists what other instances hold by their tables and by their
// files.
func (k *linux) uplinksOfOthers(c *nftables.Conn) ([]string, error) {
	_, held, err := k.forwardingFiles()
	if err != nil {
		return nil, err
	}
	tables, err := k.otherTables(c)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		es, err := elementsIn(c, nftables.TableFamilyIPv4, t, setUplinks)
		if err != nil {
			return nil, err
		}
		held = append(held, ifnames(es)...)
	}
	return held, nil
}

func (k *linux) heldByOthers() ([]string, error) {
	c, release, err := k.nft()
	if err != nil {
		return nil, err
	}
	defer release()
	return k.uplinksOfOthers(c)
}

func (k *linux) makeTables(uplinks []string, replace bool) error {
	c, release, err := k.nft()
	if err != nil {
		return err
	}
	defer release()
	if err := k.rules.write(c, replace); err != nil {
		return err
	}
	for _, u := range uplinks {
		k.queue(c, entry{nftables.TableFamilyIPv4, setUplinks, nftables.SetElement{Key: ifname(u)}}, true)
	}
	return c.Flush()
}

func (k *linux) dropTables() error {
	c, release, err := k.nft()
	if err != nil {
		return err
	}
	defer release()
	for _, t := range k.rules.tables {
		nt := &nftables.Table{Family: t.family, Name: t.name}
		c.AddTable(nt) // so that deleting cannot fail
		c.DelTable(nt)
	}
	return c.Flush()
}

func (k *linux) makeRules(id string, r ruleset, replace bool) error {
	ns, err := k.open(id)
	if err != nil {
		return err
	}
	defer ns.Close()
	c, release, err := nftIn(ns)
	if err != nil {
		return err
	}
	defer release()
	if err := r.write(c, replace); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return err
	}
	return k.enter(id, func() error {
		for _, s := range trackingSysctls {
			if err := writeSysctl(s.file, s.value); err != nil {
				return err
			}
		}
		return nil
	})
}

// queue adds the change of one element to the batch of c.
func (k *linux) queue(c *nftables.Conn, e entry, add bool) error {
	s := &nftables.Set{Table: &nftables.Table{Family: e.family, Name: k.names.table()}, Name: e.set}
	if add {
		return c.SetAddElements(s, []nftables.SetElement{e.value})
	}
	e.value.Val = nil // the key is enough, and all that the kernel accepts
	return c.SetDeleteElements(s, []nftables.SetElement{e.value})
}

func (k *linux) changeUplink(iface string, add bool) error {
	c, release, err := k.nft()
	if err != nil {
		return err
	}
	defer release()
	if err := k.queue(c, entry{nftables.TableFamilyIPv4, setUplinks, nftables.SetElement{Key: ifname(iface)}}, add); err != nil {
		return err
	}
	err = c.Flush()
	if !add && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// changeElements changes the entries of one sandbox in both tables at once.
func (k *linux) changeElements(id string, add, del []element) error {
	c, release, err := k.nft()
	if err != nil {
		return err
	}
	defer release()
	for _, change := range []struct {
		elements []element
		add      bool
	}{{del, false}, {add, true}} {
		for _, e := range change.elements {
			for _, en := range k.names.entries(id, e) {
				if err := k.queue(c, en, change.add); err != nil {
					return err
				}
			}
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}
	return k.forgetForwards(del)
}

// forgetForwards ends datagram flows through ports that are no more. Packets of
// a flow that is tracked already do not ask the rules again, so they would go
// on to reach whoever gets the address next. (Of TCP nothing is left to reach:
// the other end does not know the connection.)
func (k *linux) forgetForwards(del []element) error {
	var filters []netlink.CustomConntrackFilter
	for _, e := range del {
		if e.kind == port && e.port.Protocol == UDP {
			f := &netlink.ConntrackFilter{}
			err := errors.Join(
				f.AddProtocol(unix.IPPROTO_UDP),
				f.AddPort(netlink.ConntrackOrigDstPort, e.port.Host),
				f.AddIP(netlink.ConntrackReplySrcIP, e.addr.AsSlice()),
			)
			if err != nil {
				return err
			}
			filters = append(filters, f)
		}
	}
	if len(filters) == 0 {
		return nil
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filters...); err != nil {
		return fmt.Errorf("end flows of removed ports: %w", err)
	}
	return nil
}

func (k *linux) forget(ctx context.Context, id string) error {
	return k.enter(id, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}
