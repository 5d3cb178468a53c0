package branches

import (
	"testing"

	"lukechampine.com/blake3"
)

// HashPage takes a short cut through the library; it must come out where the
// front door does.
func TestHashPageIsBLAKE3(t *testing.T) {
	r := testRand(t, 1)
	for _, n := range []int{512, 1024, 2048, 4096, 8192, 16384, 32768, 1 << 20} {
		page := make([]byte, n, n+laneBytes)
		for i := range page {
			page[i] = byte(r.Uint32())
		}
		for i := range page[n : n+laneBytes] {
			page[n : n+laneBytes][i] = 0xee
		}
		for _, p := range [][]byte{page, page[:n:n]} {
			if got, want := HashPage(p), Hash(blake3.Sum256(p)); got != want {
				t.Errorf("%d bytes, capacity %d: got %s, want %s", n, cap(p), got, want)
			}
		}
	}
	var kids children
	kids[3], kids[511] = HashPage([]byte("a")), HashPage([]byte("b"))
	for level := range maxLevel + 1 {
		key := blake3.Sum256([]byte("sietch node v1 level " + string(rune('0'+level))))
		h := blake3.New(32, key[:])
		for i := range kids {
			h.Write(kids[i][:])
		}
		if got, want := hashNode(level, &kids), Hash(h.Sum(nil)); got != want {
			t.Errorf("node of level %d: got %s, want %s", level, got, want)
		}
	}
}
