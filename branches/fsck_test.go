package branches

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// damaged is a store with two commits, of which the second shares most pages
// with the first, and what is needed to hurt it.
type damaged struct {
	t      *testing.T
	s      *Store
	dir    string
	first  Hash
	second Hash
	maps   [2]Map
	blob   Hash
	shared Hash // a page of both commits
	own    Hash // a page of the second alone
}

func newDamaged(t *testing.T) *damaged {
	d := &damaged{t: t, dir: filepath.Join(memoryDir(t), "store")}
	d.s = openStore(t, Options{Dir: d.dir})
	w := newWriter(t, d.s)
	sp := newSpace(4<<20, 4096)
	sp.touch(testRand(t, 1), 500)
	d.maps[0], _ = writeMap(t, w, Map{}, sp, sp.all())
	var err error
	if d.blob, _, err = w.WriteBlob(t.Context(), []byte("devices")); err != nil {
		t.Fatal(err)
	}
	full := func(m Map, parents ...Hash) *Commit {
		return &Commit{Kind: KindFull, Memory: &m, Devices: d.blob, Parents: parents}
	}
	d.first = commit(t, w, full(d.maps[0]), Update{Refs: []RefUpdate{{Name: BranchRef("main"), New: Self}}})
	changed := sp.touch(testRand(t, 2), 20)
	d.maps[1], _ = writeMap(t, w, d.maps[0], sp, sp.changes(changed))
	d.second = commit(t, w, full(d.maps[1], d.first), Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: d.first, New: Self}}})
	w.Close()
	was := map[int64]bool{}
	for _, i := range changed {
		was[i] = true
		if p := sp.pages[i]; p != nil {
			d.own = HashPage(p)
		}
	}
	for i, p := range sp.pages {
		if !was[i] {
			d.shared = HashPage(p)
			break
		}
	}
	return d
}

func (d *damaged) locate(table byte, h Hash) location {
	d.t.Helper()
	v := d.s.index.view()
	defer v.discard()
	loc, ok, err := v.location(table, h)
	if err != nil || !ok {
		d.t.Fatal(ok, err)
	}
	return loc
}

func (d *damaged) patch(pack uint64, off int64, change func(b []byte)) {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "packs", packName(pack)), os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 8)
	if _, err := f.ReadAt(b, off); err != nil {
		d.t.Fatal(err)
	}
	change(b)
	if _, err := f.WriteAt(b, off); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) index(fn func(tx *change) error) {
	d.t.Helper()
	if err := d.s.index.atomically("damage", fn); err != nil {
		d.t.Fatal(err)
	}
}

// Whatever is broken, fsck says so, names what commits suffer, and a reader of
// these gets ErrCorrupt and never wrong bytes.
func TestFsckFindsDamage(t *testing.T) {
	flip := func(b []byte) { b[0] ^= 1 }
	for _, tt := range []struct {
		name    string
		damage  func(d *damaged)
		kind    string
		detail  string
		blamed  func(d *damaged) []Hash
		unread  []int // maps that cannot be read any more
		quickly bool  // found without reading bodies
	}{
		{"bit in a payload", func(d *damaged) {
			loc := d.locate(tableChunk, d.shared)
			d.patch(loc.pack, loc.offset+blockHeaderBytes+5, flip)
		}, "chunk", "cannot be read", (*damaged).both, []int{0, 1}, false},
		{"bit in a block header", func(d *damaged) {
			loc := d.locate(tableChunk, d.own)
			d.patch(loc.pack, loc.offset+9, flip)
		}, "chunk", "cannot be read", (*damaged).later, []int{1}, false},
		{"pack missing", func(d *damaged) {
			os.Remove(filepath.Join(d.dir, "packs", packName(1)))
			d.reopen()
		}, "pack", "missing", nil, []int{0, 1}, true},
		{"pack cut short", func(d *damaged) {
			loc := d.locate(tableChunk, d.own)
			if err := os.Truncate(filepath.Join(d.dir, "packs", packName(1)), loc.offset+40); err != nil {
				d.t.Fatal(err)
			}
			d.reopen()
		}, "pack", "were written", nil, []int{1}, true},
		{"page not in the index", func(d *damaged) {
			d.index(func(tx *change) error { return tx.delete(hashKey(tableChunk, d.own)) })
		}, "chunk", "missing", (*damaged).later, []int{1}, true},
		{"page somewhere else", func(d *damaged) {
			loc := d.locate(tableChunk, d.own)
			loc.offset--
			d.index(func(tx *change) error { return tx.set(hashKey(tableChunk, d.own), loc.encode()) })
		}, "chunk", "no block begins there", (*damaged).later, []int{1}, false},
		{"two pages confused", func(d *damaged) {
			loc := d.locate(tableChunk, d.shared)
			loc.slot ^= 1
			d.index(func(tx *change) error { return tx.set(hashKey(tableChunk, d.shared), loc.encode()) })
		}, "chunk", "hash to", (*damaged).both, nil, false}, // seen by fsck and verifying readers only
		{"node missing", func(d *damaged) {
			d.index(func(tx *change) error { return tx.delete(hashKey(tableNode, d.maps[1].Root)) })
		}, "node", "missing", (*damaged).later, []int{1}, true},
		{"node changed", func(d *damaged) {
			v := d.s.index.view()
			_, rec, err := v.storedNode(d.maps[1].Root)
			v.discard()
			if err != nil {
				d.t.Fatal(err)
			}
			rec[len(rec)-2] ^= 1
			d.index(func(tx *change) error { return tx.set(hashKey(tableNode, d.maps[1].Root), rec) })
		}, "node", "", (*damaged).later, nil, true},
		{"blob changed", func(d *damaged) {
			loc := d.locate(tableBlob, d.blob)
			d.patch(loc.pack, loc.offset+blockHeaderBytes, flip)
		}, "blob", "cannot be read", (*damaged).both, nil, false},
		{"commit changed", func(d *damaged) {
			d.index(func(tx *change) error {
				b := make([]byte, 9, 20)
				b[0] = valueVersion
				binary.BigEndian.PutUint64(b[1:], 1)
				return tx.set(hashKey(tableCommit, d.first), append(b, "nonsense"...))
			})
		}, "commit", "hash to", (*damaged).just, nil, true},
		{"ref to nowhere", func(d *damaged) {
			d.index(func(tx *change) error { return tx.set(refKey(TagRef("lost")), encodeRef(Hash{1})) })
		}, "ref", "missing", nil, nil, true},
		{"one branch in two sandboxes", func(d *damaged) {
			d.index(func(tx *change) error {
				head := must(encodeHead(HeadState{Head{Branch: "main"}, d.second}))
				return errors.Join(tx.set(headKey("a"), head), tx.set(headKey("b"), head))
			})
		}, "head", "checked out", nil, nil, true},
		{"reflog to nowhere", func(d *damaged) {
			d.index(func(tx *change) error {
				return tx.set(reflogKey("a", 0), must(encodeReflog(ReflogEntry{Commit: Hash{1}, Time: newClock().t})))
			})
		}, "reflog", "missing", nil, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDamaged(t)
			wantClean(t, d.s)
			tt.damage(d)
			for _, quick := range []bool{false, true} {
				r, err := d.s.Fsck(t.Context(), FsckOptions{SkipBodies: quick})
				if err != nil {
					t.Fatal(err)
				}
				if quick && !tt.quickly {
					if !r.OK() {
						t.Errorf("found without reading bodies: %+v", r.Problems[0])
					}
					continue
				}
				d.wantProblem(r, tt.kind, tt.detail, tt.blamed)
			}
			for _, i := range tt.unread {
				f := memoryFile(t)
				err := d.s.Materialize(t.Context(), d.maps[i], f, MaterializeOptions{})
				f.Close()
				var ce *CorruptError
				if !errors.As(err, &ce) || ce.Kind != "chunk" && ce.Kind != "node" {
					t.Errorf("reading map %d: got %v, want the object named", i, err)
				}
				err = nil
				for _, e := range d.s.Pages(t.Context(), d.maps[i]) {
					err = e
				}
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("pages of map %d: got %v, want ErrCorrupt", i, err)
				}
			}
		})
	}
}

func (d *damaged) both() []Hash  { return []Hash{d.first, d.second} }
func (d *damaged) later() []Hash { return []Hash{d.second} }
func (d *damaged) just() []Hash  { return []Hash{d.first} }

func (d *damaged) reopen() {
	d.t.Helper()
	if err := d.s.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.s = openStore(d.t, Options{Dir: d.dir})
}

func (d *damaged) wantProblem(r FsckReport, kind, detail string, blamed func(*damaged) []Hash) {
	d.t.Helper()
	for _, p := range r.Problems {
		if p.Kind != kind || !strings.Contains(p.Detail, detail) {
			continue
		}
		if blamed == nil {
			return
		}
		got := map[Hash]bool{}
		for _, c := range p.Commits {
			got[c] = true
		}
		want := blamed(d)
		if len(got) == len(want) && got[want[0]] && got[want[len(want)-1]] {
			return
		}
	}
	d.t.Errorf("no problem with a %s that says %q and blames the right commits among %d:", kind, detail, len(r.Problems))
	for _, p := range r.Problems[:min(5, len(r.Problems))] {
		d.t.Errorf("  %+v", p)
	}
}

// gc does not collect around damage: what it takes for garbage could be what a
// repair needs.
func TestGCRefusesDamagedStore(t *testing.T) {
	d := newDamaged(t)
	d.index(func(tx *change) error { return tx.delete(hashKey(tableNode, d.maps[0].Root)) })
	if _, err := d.s.PlanGC(t.Context(), GCOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}
