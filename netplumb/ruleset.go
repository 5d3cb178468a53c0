package netplumb

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// ruleset is the static part of one nftables table: its sets, which are filled
// elsewhere, and its chains.
type ruleset struct {
	tables []table
}

type table struct {
	family nftables.TableFamily
	name   string
	sets   []nftables.Set // without Table and ID
	chains []chain
}

type chain struct {
	name     string
	kind     nftables.ChainType // empty: a regular chain, to be jumped to
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	drop     bool // policy
	rules    []rule
}

type rule struct {
	comment string
	exprs   []expr.Any
}

// markPrefix begins the name of an empty set in each of our tables. The rest is
// the fingerprint of the rules, so that a later process, of another version
// perhaps, can tell whether they are what it would write.
const markPrefix = "rules-"

// fingerprint changes with everything that write would send.
func (r ruleset) fingerprint() string {
	h := sha256.New()
	for _, t := range r.tables {
		fmt.Fprintf(h, "table %d %s\n", t.family, t.name)
		for _, s := range t.sets {
			fmt.Fprintf(h, "set %s %s %s %t %d\n", s.Name, s.KeyType.Name, s.DataType.Name, s.Concatenation, s.Size)
		}
		for _, c := range t.chains {
			hook := nftables.ChainHook(0)
			if c.hook != nil {
				hook = *c.hook
			}
			fmt.Fprintf(h, "chain %s %s %d %d %t\n", c.name, c.kind, hook, c.priority, c.drop)
			for _, r := range c.rules {
				fmt.Fprintf(h, "rule %s\n", r.comment)
				for _, e := range r.exprs {
					b, err := expr.Marshal(byte(t.family), e)
					fmt.Fprintf(h, "%x %v\n", b, err)
				}
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// write queues messages that make the tables, in place of older ones if replace
// is set. (Removing a table that is not there costs 10 ms: the kernel waits for
// readers it cannot have.) Nothing happens before the connection is flushed,
// and then all at once.
func (r ruleset) write(c *nftables.Conn, replace bool) error {
	mark := nftables.Set{Name: markPrefix + r.fingerprint(), KeyType: nftables.TypeIPAddr, Comment: "which rules these are"}
	for _, t := range r.tables {
		nt := &nftables.Table{Family: t.family, Name: t.name}
		if replace {
			c.AddTable(nt) // so that deleting cannot fail
			c.DelTable(nt)
		}
		c.CreateTable(nt)
		for i, s := range append(t.sets[:len(t.sets):len(t.sets)], mark) {
			s.Table, s.ID = nt, uint32(i+1)
			if err := c.AddSet(&s, nil); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		// Regular chains first: rules can only jump to what is there.
		chains := make([]*nftables.Chain, len(t.chains))
		for i, ch := range t.chains {
			chains[i] = &nftables.Chain{Table: nt, Name: ch.name}
			if ch.kind != "" {
				policy := nftables.ChainPolicyAccept
				if ch.drop {
					policy = nftables.ChainPolicyDrop
				}
				chains[i].Type, chains[i].Hooknum, chains[i].Priority, chains[i].Policy = ch.kind, ch.hook, &ch.priority, &policy
			}
			c.AddChain(chains[i])
		}
		for i, ch := range t.chains {
			for _, r := range ch.rules {
				nr := &nftables.Rule{Table: nt, Chain: chains[i], Exprs: r.exprs}
				if r.comment != "" {
					nr.UserData = userdata.AppendString(nil, userdata.TypeComment, r.comment)
				}
				c.AddRule(nr)
			}
		}
	}
	return nil
}
