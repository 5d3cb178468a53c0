package branches

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

// vectors are identities and encodings of format 1. The file is part of the
// format: it is not made again. A test that fails against it says that stores
// out there cannot be read any more.
type vectors struct {
	Pages []struct {
		Fill   string // hex, repeated to Bytes
		Bytes  int
		Digest Hash
	}
	Nodes []struct {
		Level    int
		Children map[int]Hash
		Digest   Hash
		Full     string // stored form, hex
	}
	Delta struct {
		Level    int
		Base     map[int]Hash
		Children map[int]Hash
		Digest   Hash
		Record   string
	}
	Maps []struct {
		SizeBytes int64
		PageBytes int
		Pages     map[int64]string // hex, repeated
		Root      Hash
	}
	Blobs []struct {
		Data   string
		Digest Hash
	}
	Commits []struct {
		Name    string
		Encoded string
		ID      Hash
	}
	Location, PackRecord, PackHeader, BlockHeader, Ref, Head, Reflog string
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	b, err := os.ReadFile("testdata/format1.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func repeated(t testing.TB, pattern string, n int) []byte {
	t.Helper()
	return bytes.Repeat(unhex(t, pattern), n)[:n]
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func kidsOf(m map[int]Hash) (k children) {
	for i, h := range m {
		k[i] = h
	}
	return k
}

// vectorCommits are the commits behind the encodings in the file.
func vectorCommits() map[string]*Commit {
	h := func(s string) Hash { return HashPage([]byte(s)) }
	return map[string]*Commit{
		"smallest": {Kind: KindDisk, Created: time.Unix(0, 0).UTC()},
		"full": {
			Kind: KindFull, Parents: []Hash{h("p1"), h("p2")}, Branch: "main", Sandbox: "box", SandboxID: "0123",
			Message: "before the upgrade\n", Author: "Stilgar", Created: time.Unix(1767322245, 123456789).UTC(),
			Labels:  map[string]string{"z": "1", "a": "2", "longer": ""},
			Image:   ImageRef{ID: "sha256:aa", Name: "web:1", RootfsDigest: "sha256:bb"},
			Machine: []byte{0xa1, 0x01, 0x02},
			Memory:  &Map{Root: h("m"), SizeBytes: 512 << 20, PageBytes: 4096}, Devices: h("d"),
			Disk:  Map{Root: h("k"), SizeBytes: 4 << 30, PageBytes: 16384},
			Stats: Stats{1 << 27, 9 << 20, 2 << 20, 3 << 20, 1 << 20},
		},
		"all zero memory": {Kind: KindFull, Created: time.Unix(1, 0).UTC(), Memory: &Map{SizeBytes: 4096, PageBytes: 4096}},
	}
}

func TestVectors(t *testing.T) {
	v := readVectors(t)
	for _, p := range v.Pages {
		if got := HashPage(repeated(t, p.Fill, p.Bytes)); got != p.Digest {
			t.Errorf("page of %d × %s: got %s, want %s", p.Bytes, p.Fill, got, p.Digest)
		}
	}
	for _, n := range v.Nodes {
		kids := kidsOf(n.Children)
		if got := hashNode(n.Level, &kids); got != n.Digest {
			t.Errorf("node: got %s, want %s", got, n.Digest)
		}
		if got := hex.EncodeToString(encodeFull(&node{level: n.Level, kids: kids})); got != n.Full {
			t.Errorf("node: encoded as %s, want %s", got, n.Full)
		}
	}
	base, kids := kidsOf(v.Delta.Base), kidsOf(v.Delta.Children)
	prev := &node{hash: hashNode(v.Delta.Level, &base), level: v.Delta.Level, kids: base}
	n := &node{hash: hashNode(v.Delta.Level, &kids), level: v.Delta.Level, kids: kids}
	if got := hex.EncodeToString(encodeNode(n, prev)); got != v.Delta.Record || n.hash != v.Delta.Digest {
		t.Errorf("delta: got %s %s, want %s %s", n.hash, got, v.Delta.Digest, v.Delta.Record)
	}
	s := openStore(t, Options{})
	w := newWriter(t, s)
	for _, m := range v.Maps {
		sp := newSpace(m.SizeBytes, m.PageBytes)
		for i, fill := range m.Pages {
			sp.pages[i] = repeated(t, fill, m.PageBytes)
		}
		got, _ := writeMap(t, w, Map{}, sp, sp.all())
		if got.Root != m.Root {
			t.Errorf("map of %d bytes: got root %s, want %s", m.SizeBytes, got.Root, m.Root)
		}
	}
	for _, b := range v.Blobs {
		if id, _, err := w.WriteBlob(t.Context(), []byte(b.Data)); err != nil || id != b.Digest {
			t.Errorf("blob: got %s, %v, want %s", id, err, b.Digest)
		}
	}
	commits := vectorCommits()
	for _, c := range v.Commits {
		enc := unhex(t, c.Encoded)
		got, err := decodeCommit(enc)
		if err != nil {
			t.Errorf("commit %s: %v", c.Name, err)
			continue
		}
		if diff := cmp.Diff(commits[c.Name], got); diff != "" {
			t.Errorf("commit %s (-want +got):\n%s", c.Name, diff)
		}
		if id := commitDomain.sum(enc); id != c.ID {
			t.Errorf("commit %s: got id %s, want %s", c.Name, id, c.ID)
		}
	}
	if len(v.Commits) != len(commits) {
		t.Errorf("%d commits in the file, want %d", len(v.Commits), len(commits))
	}
	for name, pair := range map[string][2]string{
		"location":     {v.Location, hex.EncodeToString(vectorLocation.encode())},
		"pack record":  {v.PackRecord, hex.EncodeToString(encodePackRecord(1 << 20))},
		"pack header":  {v.PackHeader, hex.EncodeToString(encodePackHeader(7))},
		"block header": {v.BlockHeader, hex.EncodeToString(vectorBlock.append(nil))},
		"ref":          {v.Ref, hex.EncodeToString(encodeRef(Hash{1, 2, 3}))},
		"HEAD":         {v.Head, hex.EncodeToString(must(encodeHead(vectorHead)))},
		"reflog":       {v.Reflog, hex.EncodeToString(must(encodeReflog(vectorReflog)))},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: encoded as %s, want %s", name, pair[1], pair[0])
		}
	}
}

var (
	vectorLocation = location{pack: 300, offset: 1 << 27, length: 40000, slot: 31}
	vectorBlock    = blockHeader{kind: pagesBlock, codec: codecZstd, count: 32, unit: 4096, payload: 12345, sum: 0xdeadbeef}
	vectorHead     = HeadState{Head{Branch: "main"}, Hash{1}}
	vectorReflog   = ReflogEntry{Commit: Hash{1}, Action: "commit", Message: "x", Time: time.Unix(1, 2).UTC()}
)

// Every node comes back from its record as it was, over chains of deltas of any
// kind of change, and no chain is longer than allowed.
func TestNodeRecords(t *testing.T) {
	for seed := range uint64(20) {
		r := testRand(t, seed)
		records := memoryNodes{}
		var prev *node
		var kids children
		size, full, deepest := 0, 0, 0
		for range 60 {
			next := kids
			for range 1 + r.IntN(30) {
				i := r.IntN(fanout)
				if r.IntN(4) == 0 {
					next[i] = Hash{}
				} else {
					next[i] = Hash{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 1}
				}
			}
			h := hashNode(0, &next)
			if h.IsZero() {
				continue
			}
			n := &node{hash: h, kids: next}
			rec := encodeNode(n, prev)
			records[h] = rec
			size += len(rec)
			full += len(encodeFull(n))
			got, err := loadNode(records, h, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got.kids != next || got.depth != n.depth || got.depth > maxDeltaDepth {
				t.Fatalf("seed %d: node of depth %d came back as one of depth %d, equal: %v", seed, n.depth, got.depth, got.kids == next)
			}
			if deepest = max(deepest, n.depth); n.depth > 0 && got.base.hash != n.base.hash {
				t.Fatalf("seed %d: the chain ends at %s, want %s", seed, got.base.hash, n.base.hash)
			}
			prev, kids = got, next
		}
		if size > full*2/3 || deepest == 0 {
			t.Errorf("seed %d: %d bytes in records up to %d deep, %d when each is whole", seed, size, deepest, full)
		}
	}
}

type memoryNodes map[Hash][]byte

func (m memoryNodes) nodeRecord(h Hash) (nodeRecord, bool, error) {
	b, ok := m[h]
	if !ok {
		return nodeRecord{}, false, nil
	}
	rec, err := decodeNode(b)
	return rec, true, err
}

func TestLoadNodeFindsDamage(t *testing.T) {
	kids := children{1: {1}}
	delta := func(base Hash) []byte {
		return encodeDelta(&node{depth: 1, kids: children{2: {2}}}, &node{hash: base})
	}
	for _, tt := range []struct {
		name    string
		records memoryNodes
		want    string
	}{
		{"missing", memoryNodes{}, "missing"},
		{"base missing", memoryNodes{{1}: delta(Hash{2})}, "its base"},
		{"wrong level", memoryNodes{{1}: encodeFull(&node{level: 2, kids: kids})}, "level 2 where 0 belongs"},
		{"circle", memoryNodes{{1}: delta(Hash{2}), {2}: delta(Hash{1})}, "does not end"},
		{"self", memoryNodes{{1}: delta(Hash{1})}, "does not end"},
	} {
		_, err := loadNode(tt.records, Hash{1}, 0)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want ErrCorrupt with %q", tt.name, err, tt.want)
		}
	}
}

func TestBlocks(t *testing.T) {
	r := testRand(t, 1)
	enc, dec := newEncoder(), newDecoder()
	random := make([]byte, 8<<10)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	for _, tt := range []struct {
		name string
		kind blockKind
		unit int
		raw  []byte
	}{
		{"pages", pagesBlock, 4096, fill(r, 32*4096)},
		{"one page", pagesBlock, 512, fill(r, 512)},
		{"incompressible", pagesBlock, 4096, random},
		{"blob", blobBlock, 5, []byte("hello")},
		{"empty blob", blobBlock, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := encodeBlock([]byte("before"), tt.kind, tt.unit, tt.raw, enc)[6:]
			h, raw, err := decodeBlock(nil, b, dec)
			if err != nil || !bytes.Equal(raw, tt.raw) || h.kind != tt.kind || h.length() != len(b) {
				t.Fatalf("got %+v, %v", h, err)
			}
			// Any one byte changed, and any byte missing, is noticed.
			for range 200 {
				bad := bytes.Clone(b)
				bad[r.IntN(len(bad))] ^= byte(1 + r.IntN(255))
				if _, _, err := decodeBlock(nil, bad, dec); err == nil {
					t.Fatal("a changed byte went unnoticed")
				}
			}
			for n := range len(b) {
				if n > 100 && n%97 != 0 {
					continue
				}
				if _, _, err := decodeBlock(nil, b[:n], dec); err == nil {
					t.Fatalf("%d of %d bytes were enough", n, len(b))
				}
			}
		})
	}
}

func TestCommitEncodingIsCanonical(t *testing.T) {
	c := vectorCommits()["full"]
	enc, err := encodeCommit(c)
	if err != nil {
		t.Fatal(err)
	}
	// The same map in another order, and a longer form of a number, are the
	// same CBOR value: they must not be the same commit.
	long := bytes.Replace(enc, []byte{0x00, 0x01, 0x01, 0x01}, []byte{0x00, 0x18, 0x01, 0x01, 0x01}, 1)
	if bytes.Equal(long, enc) {
		t.Fatal("the encoding does not begin as thought")
	}
	for name, bad := range map[string][]byte{"long number": long, "trailing byte": append(bytes.Clone(enc), 0), "cut": enc[:len(enc)-1], "empty": nil} {
		if _, err := decodeCommit(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	future := bytes.Clone(enc)
	future[2] = 2 // version
	if _, err := decodeCommit(future); !errors.Is(err, ErrFormat) {
		t.Errorf("another version: got %v, want ErrFormat", err)
	}
}

func FuzzNode(f *testing.F) {
	f.Add(encodeFull(&node{kids: children{0: {1}, 5: {2}, 511: {3}}}))
	f.Add(encodeDelta(&node{depth: 3, kids: children{4: {1}}}, &node{hash: Hash{9}, kids: children{7: {2}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := decodeNode(b)
		if err != nil {
			return
		}
		// What decodes has one encoding: this one.
		n := &node{level: rec.level, depth: rec.depth}
		base := &node{hash: rec.base, level: rec.level}
		for _, i := range rec.cleared {
			base.kids[i] = Hash{0xbb}
		}
		set := map[int]bool{}
		for _, s := range rec.set {
			if slices.Contains(rec.cleared, s.index) {
				return // allowed, if pointless: cleared wins
			}
			set[s.index] = true
		}
		rec.apply(&n.kids)
		again := encodeFull(n)
		if rec.depth > 0 {
			again = encodeDelta(n, base)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x decodes to what is encoded as %x", b, again)
		}
	})
}

func FuzzBlock(f *testing.F) {
	enc := newEncoder()
	f.Add(encodeBlock(nil, pagesBlock, 512, make([]byte, 2048), enc))
	f.Add(encodeBlock(nil, blobBlock, 3, []byte("abc"), enc))
	f.Fuzz(func(t *testing.T, b []byte) {
		dec := decoders.Get().(*zstd.Decoder)
		defer decoders.Put(dec)
		// With a checksum that fits, so that what is behind it is reached.
		for _, fixed := range [][]byte{b, fixBlock(b)} {
			h, raw, err := decodeBlock(nil, fixed, dec)
			if err == nil && (len(raw) != h.rawBytes() || h.length() != len(fixed)) {
				t.Errorf("%d raw bytes, header says %d", len(raw), h.rawBytes())
			}
		}
	})
}

// fixBlock gives bytes the checksums of a block.
func fixBlock(b []byte) []byte {
	if len(b) < blockHeaderBytes {
		return b
	}
	h := blockHeader{kind: blockKind(b[5]), codec: b[6], count: int(b[8]), unit: int(b[12]) | int(b[13])<<8, payload: len(b) - blockHeaderBytes}
	h.sum = checksum(b[blockHeaderBytes:])
	return append(h.append(nil), b[blockHeaderBytes:]...)
}

func FuzzCommit(f *testing.F) {
	for _, c := range vectorCommits() {
		f.Add(must(encodeCommit(c)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommit(b)
		if err != nil {
			return
		}
		if again := must(encodeCommit(c)); !bytes.Equal(again, b) {
			t.Errorf("%x decodes to what is encoded as %x", b, again)
		}
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(vectorLocation.encode())
	f.Add(encodePackRecord(1 << 40))
	f.Add(encodePackHeader(3))
	f.Add(encodeRef(Hash{1}))
	f.Add(must(encodeHead(vectorHead)))
	f.Add(must(encodeReflog(vectorReflog)))
	f.Add(commitRecord{5, []byte("x")}.encode())
	f.Add([]byte("sietch-store 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := map[string][]byte{}
		if l, err := decodeLocation(b); err == nil {
			again["location"] = l.encode()
		}
		if n, err := decodePackRecord(b); err == nil {
			again["pack record"] = encodePackRecord(n)
		}
		if err := checkPackHeader(b, 3); err == nil {
			again["pack header"] = append(encodePackHeader(3), b[packHeaderBytes:]...)
		}
		if h, err := decodeRef(b); err == nil {
			again["ref"] = encodeRef(h)
		}
		if v, err := parseFormat(string(b)); err == nil {
			again["format"] = fmt.Appendf(nil, "%s%d\n", formatPrefix, v)
		}
		for name, enc := range again {
			if !bytes.Equal(enc, b) {
				t.Errorf("%s %x decodes to what is encoded as %x", name, b, enc)
			}
		}
		// These only must not panic, nor take what they would not give.
		if h, err := decodeHead(b); err == nil {
			if got, err := decodeHead(must(encodeHead(h))); err != nil || got != h {
				t.Errorf("HEAD %+v comes back as %+v, %v", h, got, err)
			}
		}
		if e, err := decodeReflog(b); err == nil {
			if got, err := decodeReflog(must(encodeReflog(e))); err != nil || got != e {
				t.Errorf("entry %+v comes back as %+v, %v", e, got, err)
			}
		}
		_, _ = decodeCommitRecord(Hash{}, b)
		_, _ = parsePackName(string(b))
	})
}

func TestHashText(t *testing.T) {
	h := HashPage([]byte("x"))
	b, err := json.Marshal(map[string]Hash{"a": h, "b": {}})
	if err != nil || string(b) != fmt.Sprintf(`{"a":"%s","b":""}`, h) {
		t.Errorf("got %s, %v", b, err)
	}
	var back map[string]Hash
	if err := json.Unmarshal(b, &back); err != nil || !maps.Equal(back, map[string]Hash{"a": h, "b": {}}) {
		t.Errorf("got %v, %v", back, err)
	}
	for _, bad := range []string{"", "12", strings.Repeat("g", 64), strings.ToUpper(h.String()), h.String() + "00"} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("%q: parsed", bad)
		}
	}
	if len(h.Short()) != 12 || !strings.HasPrefix(h.String(), h.Short()) {
		t.Errorf("short form %s of %s", h.Short(), h)
	}
}
