package branches

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

const (
	// fanout is the number of children of every tree node.
	fanout     = 512
	fanoutBits = 9
	// maxLevel: 512^6 pages are more than any space has.
	maxLevel = 5

	nodeFull  = 1
	nodeDelta = 2

	// maxDeltaDepth bounds the chain of records that are read to know one node.
	// Chains are ended from minDeltaDepth on, at a depth that differs from node
	// to node: otherwise all leaves of a map would be written whole in one
	// commit, every so many commits.
	maxDeltaDepth = 12
	minDeltaDepth = 8
	// maxDeltaHops is where a reader gives up on a chain. Two writers that store
	// the same node over different bases can make one longer than either meant.
	maxDeltaHops = 64
)

// children are the hashes below a node; zero is a hole.
type children [fanout]Hash

// node is a tree node in memory. The children of a leaf (level 0) are pages.
type node struct {
	hash  Hash
	level int
	kids  children

	// How it is stored: depth records above a full one, whose contents base
	// keeps, so that a new version may be stored against it instead.
	depth int
	base  *node // the full node at the end of the chain; nil when that is itself
}

// hashNode returns a node's identity: the digest of all its children, holes
// included, under its level's key. The empty node is the zero hash.
func hashNode(level int, kids *children) Hash {
	if *kids == (children{}) {
		return Hash{}
	}
	return nodeDomains[level].sum(unsafe.Slice((*byte)(unsafe.Pointer(kids)), fanout*HashBytes))
}

// encodeNode returns the stored form of a node: whole, or as the difference to
// prev (an earlier version, nil if none) or to the full node prev is based on.
// It sets n.depth and n.base.
func encodeNode(n, prev *node) []byte {
	n.depth, n.base = 0, nil
	if prev == nil || prev.level != n.level || prev.hash == n.hash {
		return encodeFull(n)
	}
	count := 0
	for i := range n.kids {
		if !n.kids[i].IsZero() {
			count++
		}
	}
	full := count * HashBytes
	root := prev
	if prev.base != nil {
		root = prev.base
	}
	toPrev, toRoot := deltaCost(n, prev), deltaCost(n, root)
	limit := minDeltaDepth + int(root.hash[0])%(maxDeltaDepth-minDeltaDepth+1)
	// A shorter chain is worth a little, and a fresh start is due when even the
	// difference to the full node comes near to that.
	switch {
	case toRoot <= full*3/4 && (toRoot <= toPrev+toPrev/4 || prev.depth >= limit):
		n.depth, n.base = 1, root
		return encodeDelta(n, root)
	case toPrev <= full/2 && prev.depth < limit:
		n.depth, n.base = prev.depth+1, root
		return encodeDelta(n, prev)
	}
	return encodeFull(n)
}

// deltaCost is about the size of n stored against base.
func deltaCost(n, base *node) int {
	cost := HashBytes
	for i := range n.kids {
		if n.kids[i] != base.kids[i] {
			cost += HashBytes + 2
		}
	}
	return cost
}

func encodeFull(n *node) []byte {
	b := []byte{valueVersion, nodeFull, byte(n.level)}
	return appendSlots(b, &n.kids, func(i int) bool { return !n.kids[i].IsZero() })
}

func encodeDelta(n, base *node) []byte {
	b := []byte{valueVersion, nodeDelta, byte(n.level), byte(n.depth)}
	b = append(b, base.hash[:]...)
	b = appendSlots(b, &n.kids, func(i int) bool { return n.kids[i] != base.kids[i] && !n.kids[i].IsZero() })
	return appendRuns(b, func(i int) bool { return n.kids[i] != base.kids[i] && n.kids[i].IsZero() })
}

// appendSlots writes the chosen slots: which they are, then their hashes.
func appendSlots(b []byte, kids *children, in func(int) bool) []byte {
	b = appendRuns(b, in)
	for i := range kids {
		if in(i) {
			b = append(b, kids[i][:]...)
		}
	}
	return b
}

// appendRuns writes a set of slots as runs: how many, then for each how many
// slots are skipped since the last and how many it has.
func appendRuns(b []byte, in func(int) bool) []byte {
	var runs []uint64
	for i, end := 0, 0; i < fanout; {
		if !in(i) {
			i++
			continue
		}
		start := i
		for i < fanout && in(i) {
			i++
		}
		runs = append(runs, uint64(start-end), uint64(i-start))
		end = i
	}
	b = binary.AppendUvarint(b, uint64(len(runs)/2))
	for _, v := range runs {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// nodeRecord is a stored node taken apart but not put on its base.
type nodeRecord struct {
	level   int
	depth   int  // 0: full
	base    Hash // deltas only
	set     []slot
	cleared []int
}

type slot struct {
	index int
	hash  Hash
}

func decodeNode(b []byte) (nodeRecord, error) {
	r := reader{b: b}
	r.version(valueVersion)
	kind := r.byte()
	rec := nodeRecord{level: int(r.byte())}
	if rec.level > maxLevel {
		r.fail(fmt.Errorf("level %d", rec.level))
	}
	switch kind {
	case nodeFull:
	case nodeDelta:
		rec.depth = int(r.byte())
		if rec.depth < 1 || rec.depth > maxDeltaDepth {
			r.fail(fmt.Errorf("delta depth %d", rec.depth))
		}
		rec.base = r.hash()
	default:
		r.fail(fmt.Errorf("unknown kind %d", kind))
	}
	set := r.runs()
	rec.set = make([]slot, 0, len(set))
	for _, i := range set {
		h := r.hash()
		if r.err == nil && h.IsZero() {
			r.fail(errors.New("stored hole"))
		}
		rec.set = append(rec.set, slot{i, h})
	}
	if kind == nodeDelta {
		rec.cleared = r.runs()
	} else if r.err == nil && len(set) == 0 {
		r.fail(errors.New("node without children"))
	}
	return rec, r.end("node")
}

// runs reads what appendRuns wrote.
func (r *reader) runs() []int {
	n := r.uvarint(fanout)
	var out []int
	at := uint64(0)
	for k := range n {
		skip, length := r.uvarint(fanout), r.uvarint(fanout)
		if r.err != nil {
			return nil
		}
		if length == 0 || k > 0 && skip == 0 || at+skip+length > fanout {
			r.fail(errors.New("runs of slots out of order"))
			return nil
		}
		for i := at + skip; i < at+skip+length; i++ {
			out = append(out, int(i))
		}
		at += skip + length
	}
	return out
}

// apply lays the record over what kids holds, the base's children.
func (rec *nodeRecord) apply(kids *children) {
	for _, s := range rec.set {
		kids[s.index] = s.hash
	}
	for _, i := range rec.cleared {
		kids[i] = Hash{}
	}
}

// nodeSource finds stored node records. ok is false when there is none.
type nodeSource interface {
	nodeRecord(h Hash) (rec nodeRecord, ok bool, err error)
}

// loadNode reads a node and, for a delta, the chain it rests on.
func loadNode(src nodeSource, h Hash, level int) (*node, error) {
	corrupt := func(obj Hash, why string) error {
		return &CorruptError{Kind: "node", Object: obj.String(), Reason: why}
	}
	var chain []nodeRecord
	for at := h; ; {
		rec, ok, err := src.nodeRecord(at)
		switch {
		case err != nil:
			return nil, err
		case !ok && at == h:
			return nil, corrupt(h, "missing")
		case !ok:
			return nil, corrupt(h, fmt.Sprintf("its base %s is missing", at))
		case rec.level != level:
			return nil, corrupt(h, fmt.Sprintf("level %d where %d belongs", rec.level, level))
		}
		chain = append(chain, rec)
		if rec.depth == 0 {
			break
		}
		if len(chain) > maxDeltaHops {
			return nil, corrupt(h, "its chain of bases does not end")
		}
		at = rec.base
	}
	n := &node{hash: h, level: level, depth: len(chain) - 1}
	for i := len(chain) - 1; i >= 0; i-- {
		chain[i].apply(&n.kids)
		if i == len(chain)-1 && i > 0 {
			n.base = &node{hash: chain[i-1].base, level: level, kids: n.kids}
		}
	}
	return n, nil
}
