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

// marks returns the fingerprint of each of our tables in a family, by name.
func marks(c *nftables.Conn, f nftables.TableFamily) (map[string]string, error) {
	chains, err := c.ListChainsOfTableFamily(f)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, ch := range chains {
		if mark, ok := strings.CutPrefix(ch.Name, markPrefix); ok && ch.Hooknum == nil {
			m[ch.Table.Name] = mark
		}
	}
	return m, nil
}

func markOf(ns *os.File, table string) (string, error) {
	c, release, err := nftIn(ns)
	if err != nil {
		return "", err
	}
	defer release()
	m, err := marks(c, nftables.TableFamilyIPv4)
	return m[table], err
}

func elementsIn(c *nftables.Conn, f nftables.TableFamily, table, set string) ([]nftables.SetElement, error) {
	es, err := c.GetSetElements(&nftables.Set{Table: &nftables.Table{Family: f, Name: table}, Name: set})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list set %s: %w", set, err)
	}
	return es, nil
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
	ipMarks, err := marks(c, ip)
	if err != nil {
		return nil, err
	}
	bridgeMarks, err := marks(c, br)
	if err != nil {
		return nil, err
	}
	if held, err = uplinksOfOthers(c, ipMarks, k.names.table()); err != nil {
		return nil, err
	}
	t := k.names.table()
	ipMark, bridgeMark := ipMarks[t], bridgeMarks[t]
	switch {
	case ipMark == "" && bridgeMark == "":
		return held, nil
	case ipMark != bridgeMark:
		w.tables = "partial" // somebody removed one: write both anew
	default:
		w.tables = ipMark
	}

	members, err := elementsIn(c, br, t, setMembers)
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
	resolvers, err := elementsIn(c, ip, t, setResolvers)
	if err != nil {
		return nil, err
	}
	for _, e := range resolvers {
		if len(e.Key) == 8 {
			add(element{kind: resolver, addr: netip.AddrFrom4([4]byte(e.Key[:4])), peer: netip.AddrFrom4([4]byte(e.Key[4:]))})
		}
	}
	for _, m := range []string{mapPorts, mapPortsAt} {
		ports, err := elementsIn(c, ip, t, m)
		if err != nil {
			return nil, err
		}
		for _, se := range ports {
			e, err := parsePort(m, se)
			if err != nil {
				return nil, err
			}
			add(e)
		}
	}
	for _, c := range w.cells {
		slices.SortFunc(c.elements, compareElements)
	}
	w.uplinks, err = uplinksIn(c, t)
	return held, err
}

func uplinksIn(c *nftables.Conn, table string) ([]string, error) {
	es, err := elementsIn(c, nftables.TableFamilyIPv4, table, setUplinks)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range es {
		names = append(names, unix.ByteSliceToString(e.Key))
	}
	slices.Sort(names)
	return names, nil
}

func uplinksOfOthers(c *nftables.Conn, marks map[string]string, own string) ([]string, error) {
	var held []string
	for t := range marks {
		if t == own || !strings.HasPrefix(t, bridgePrefix) {
			continue
		}
		names, err := uplinksIn(c, t)
		if err != nil {
			return nil, err
		}
		held = append(held, names...)
	}
	return held, nil
}

func (k *linux) heldByOthers() ([]string, error) {
	c, release, err := k.nft()
	if err != nil {
		return nil, err
	}
	defer release()
	m, err := marks(c, nftables.TableFamilyIPv4)
	if err != nil {
		return nil, err
	}
	return uplinksOfOthers(c, m, k.names.table())
}

func (k *linux) makeTables(uplinks []string, replace bool) error {
	c, release, err := k.nft()
	if err != nil {
		return err
	}
	defer release()
	if err := hostRules(k.names).write(c, replace); err != nil {
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
	for _, t := range hostRules(k.names).tables {
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
