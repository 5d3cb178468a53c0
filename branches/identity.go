package branches

import (
	"encoding/binary"
	"fmt"
	"sync"

	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"
)

// What is hashed for which object. Pages use plain BLAKE3; everything else is
// keyed by the digest of its domain's name, so that no page a guest makes up
// can pass for a node or a commit.
var (
	commitDomain = newDomain("sietch commit v1")
	blobDomain   = newDomain("sietch blob v1")
	nodeKeys     = func() (keys [maxLevel + 1][8]uint32) {
		for level := range keys {
			keys[level] = keyWords(fmt.Sprintf("sietch node v1 level %d", level))
		}
		return keys
	}()
)

func keyWords(name string) (words [8]uint32) {
	key := blake3.Sum256([]byte(name))
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	return words
}

// domain hashes objects of any length.
type domain struct{ pool sync.Pool }

func newDomain(name string) *domain {
	key := blake3.Sum256([]byte(name))
	return &domain{pool: sync.Pool{New: func() any { return blake3.New(HashBytes, key[:]) }}}
}

func (d *domain) sum(data []byte) (out Hash) {
	h := d.pool.Get().(*blake3.Hasher)
	defer d.pool.Put(h)
	h.Reset()
	_, _ = h.Write(data) // never fails
	h.Sum(out[:0])
	return out
}

// laneBytes is what the library hashes in one go. Pages and nodes fit in that,
// and going there directly saves it from starting goroutines for each of them,
// which costs more than the hashing.
const laneBytes = guts.MaxSIMD * guts.ChunkSize

type lane = [laneBytes]byte

var lanes = sync.Pool{New: func() any { return new(lane) }}

// HashPage returns the identity of a page: the BLAKE3 digest of its bytes.
func HashPage(data []byte) Hash {
	if len(data) <= guts.ChunkSize || len(data) > laneBytes {
		return blake3.Sum256(data)
	}
	if cap(data) >= laneBytes {
		return sumLane((*lane)(data[:laneBytes]), len(data), &guts.IV, 0)
	}
	l := lanes.Get().(*lane)
	defer lanes.Put(l)
	copy(l[:], data)
	return sumLane(l, len(data), &guts.IV, 0)
}

// sumLane hashes the first n bytes of l, more than one chunk of them. What lies
// behind is read and does not matter.
func sumLane(l *lane, n int, key *[8]uint32, flags uint32) Hash {
	root := guts.CompressBuffer(l, n, key, 0, flags)
	root.Flags |= guts.FlagRoot
	full := guts.WordsToBytes(guts.CompressNode(root))
	return Hash(full[:HashBytes])
}
