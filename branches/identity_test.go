package branches

import "testing"

// counting is the input of BLAKE3's published test vectors.
func counting(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i % 251)
	}
	return p
}

// Identities are for ever: whichever library makes them, in whichever piece of a
// buffer the data lies.
func TestIdentities(t *testing.T) {
	for n, want := range map[int]string{
		512:     "87aa0321ee04decf72d6fe8d5799d6216db538c0da4a367d6d456643e9ea7994",
		1024:    "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
		1025:    "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
		4096:    "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969",
		5000:    "ee78d92070de3df1c57c37002abf0a6b1a6589acdeef4d8ffac7cf3d9e8f2836",
		8192:    "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63",
		16384:   "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
		65536:   "68d647e619a930e7b1082f74f334b0c65a315725569bdc123f0ee11881717bfe",
		1048576: "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343",
	} {
		for shift := range 2 {
			p := append(make([]byte, shift, shift+n+100), counting(n)...)[shift:]
			if got := HashPage(p).String(); got != want {
				t.Errorf("%d bytes, %d into a buffer: got %s, want %s", n, shift, got, want)
			}
		}
	}
	var kids children
	kids[3], kids[511] = HashPage(counting(4096)), HashPage(counting(512))
	for level, want := range map[int]string{
		0: "b04585ac7f3ea24b9fa842590d89bea519dc111a3cc6ba57aa5862885ab711a0",
		1: "2c8e07f20bc58ec5972a5521402e1b61d4f26b27401193ebd61fbb22625d8e9e",
		2: "99c233668e24cfcac76aa7e694ea834320d019a6b8790947fcc6c78b6c624ba1",
		3: "9cad9a47bb8dbe4f7bf6c89ca4a39fa5d6b3f455eb37fc5b1e6f1a8c96cd32fe",
		4: "594ccbbdee9407c3dc62265e768c814a4c1b5a107bf48ce6a6e34756e3dedeea",
		5: "0e77264e027e1748d24b50529fd1fcc960d789d0d382f66df03728e0426f065b",
	} {
		if got := hashNode(level, &kids).String(); got != want {
			t.Errorf("node of level %d: got %s, want %s", level, got, want)
		}
	}
}
