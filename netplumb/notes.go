package netplumb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Note is something about this host that an operator should know.
type Note struct {
	Text string // what is so and what follows from it
	Fix  string // a command or setting that changes it; may be empty
}

// Notes reports what on this host stands in the way of networks or changes what
// guests see. It changes nothing.
func (p *Plumber) Notes(ctx context.Context) ([]Note, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	notes, err := p.kernel.notes(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at host network: %w", err)
	}
	if addrs, file := hostResolvers(p.readFile); file == "" {
		notes = append(notes, Note{
			Text: fmt.Sprintf("no file on this host names a resolver that guests can reach (loopback addresses are the host's own); they ask %v", addrs),
			Fix:  "put a reachable IPv4 name server into " + resolvFiles[0],
		})
	}
	w, err := p.look(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return notes, nil // which the kernel's own notes say
	} else if err != nil {
		return nil, fmt.Errorf("look at networks: %w", err)
	}
	for _, id := range slices.Sorted(maps.Keys(w.cells)) {
		if c := w.cells[id]; c.veth && (!c.natted() || !c.link.IsValid()) {
			notes = append(notes, Note{
				Text: fmt.Sprintf("the host's rules for sandbox %s are gone (reloading a firewall flushes the rules of everybody): it reaches nothing outside and may reach services of the host", id),
				Fix:  "stop and start the sandbox",
			})
		}
	}
	occupied, err := p.kernel.occupied(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at host routes: %w", err)
	}
	if _, err := p.freeBlock(nil, occupied); errors.Is(err, ErrExhausted) {
		notes = append(notes, Note{
			Text: fmt.Sprintf("routes of this host cover the whole address pool %s; no sandbox can have a network", p.pool),
			Fix:  "choose another pool",
		})
	}
	return notes, nil
}

func (k *linux) notes(ctx context.Context) ([]Note, error) {
	var notes []Note
	const tun = "/dev/net/tun"
	if _, err := os.Stat(tun); errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, Note{Text: tun + " is missing; no sandbox can start", Fix: "modprobe tun"})
	}
	c, release, err := k.nft()
	if err != nil {
		return nil, err
	}
	defer release()
	for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		chains, err := c.ListChainsOfTableFamily(f)
		if errors.Is(err, fs.ErrPermission) {
			return append(notes, Note{Text: "not permitted to look at nftables", Fix: "run as root"}), nil
		}
		if err != nil {
			return nil, err
		}
		for _, ch := range chains {
			notes = append(notes, k.closedForward(ch)...)
		}
	}
	if b, err := os.ReadFile("/proc/net/ip_tables_names"); err == nil && strings.Contains(string(b), "filter") {
		notes = append(notes, Note{
			Text: "the legacy iptables filter table is loaded beside nftables; when its FORWARD chain drops, guests reach nothing",
			Fix:  "iptables-legacy -S FORWARD",
		})
	}
	return notes, nil
}

// closedForward remarks on a chain that drops what is routed unless it knows
// better. Such a drop is final: no rule of ours can overrule it.
func (k *linux) closedForward(ch *nftables.Chain) []Note {
	if ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || strings.HasPrefix(ch.Table.Name, bridgePrefix) {
		return nil
	}
	if ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
		return nil
	}
	br := k.names.bridge()
	n := Note{Text: fmt.Sprintf("chain %s of table %s drops what it is not told to forward, as Docker and ufw set it up; unless it has rules for %s, guests reach nothing and forwarded ports work on this host only", ch.Name, ch.Table.Name, br)}
	if ch.Table.Family == nftables.TableFamilyIPv4 && ch.Table.Name == "filter" {
		n.Fix = fmt.Sprintf("iptables -I %[1]s -i %[2]s -j ACCEPT && iptables -I %[1]s -o %[2]s -j ACCEPT (DOCKER-USER where Docker runs)", ch.Name, br)
	} else {
		n.Fix = fmt.Sprintf("nft insert rule %s %s %s iifname %s accept, and the same with oifname", familyName(ch.Table.Family), ch.Table.Name, ch.Name, br)
	}
	return []Note{n}
}

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyINet {
		return "inet"
	}
	return "ip"
}
