package branches

import (
	"sync"

	"lukechampine.com/blake3"
)

// domain is a kind of hashed object. Pages use plain BLAKE3; everything else is
// keyed by its domain, so that no page a guest makes up can pass for a node or
// a commit.
type domain struct{ pool sync.Pool }

func newDomain(name string) *domain {
	key := blake3.Sum256([]byte(name))
	return &domain{pool: sync.Pool{New: func() any { return blake3.New(HashBytes, key[:]) }}}
}

var (
	nodeDomain   = newDomain("sietch node v1")
	commitDomain = newDomain("sietch commit v1")
	blobDomain   = newDomain("sietch blob v1")
)

func (d *domain) sum(parts ...[]byte) Hash {
	h := d.pool.Get().(*blake3.Hasher)
	defer d.pool.Put(h)
	h.Reset()
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	var out Hash
	h.Sum(out[:0])
	return out
}
