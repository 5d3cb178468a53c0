package branches

import (
	"fmt"
	"sync"

	"github.com/zeebo/blake3"
)

// What is hashed for which object. Pages use plain BLAKE3; everything else is
// keyed by the digest of its domain's name, so that no page a guest makes up
// can pass for a node or a commit.
var (
	commitDomain = newDomain("sietch commit v1")
	blobDomain   = newDomain("sietch blob v1")
	nodeDomains  = func() (domains [maxLevel + 1]*domain) {
		for level := range domains {
			domains[level] = newDomain(fmt.Sprintf("sietch node v1 level %d", level))
		}
		return domains
	}()
)

// domain hashes objects of any length.
type domain struct{ pool sync.Pool }

func newDomain(name string) *domain {
	key := blake3.Sum256([]byte(name))
	return &domain{pool: sync.Pool{New: func() any {
		h, err := blake3.NewKeyed(key[:])
		if err != nil {
			panic(err) // the key's length is wrong, and it is not
		}
		return h
	}}}
}

func (d *domain) sum(data []byte) (out Hash) {
	h := d.pool.Get().(*blake3.Hasher)
	defer d.pool.Put(h)
	h.Reset()
	_, _ = h.Write(data) // never fails
	h.Sum(out[:0])
	return out
}

// HashPage returns the identity of a page: the BLAKE3 digest of its bytes.
func HashPage(data []byte) Hash { return blake3.Sum256(data) }
