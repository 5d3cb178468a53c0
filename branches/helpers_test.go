package branches

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clock is a settable time source.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)} }

func (c *clock) now() time.Time {
	c.t = c.t.Add(time.Second)
	return c.t
}

func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(memoryDir(t), "store")
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// space is a model of what a Map holds: page index → content; holes are absent.
type space struct {
	size      int64
	pageBytes int
	pages     map[int64][]byte
}

func newSpace(size int64, pageBytes int) *space {
	return &space{size, pageBytes, map[int64][]byte{}}
}

func (s *space) clone() *space {
	return &space{s.size, s.pageBytes, maps.Clone(s.pages)}
}

// touch writes to n random pages (some become zero) and returns their indexes.
func (s *space) touch(r *rand.Rand, n int) []int64 {
	total := (s.size + int64(s.pageBytes) - 1) / int64(s.pageBytes)
	changed := map[int64]bool{}
	for range n {
		i := r.Int64N(total)
		changed[i] = true
		if r.IntN(8) == 0 {
			delete(s.pages, i)
			continue
		}
		s.pages[i] = fill(r, s.pageBytes)
		if over := (i+1)*int64(s.pageBytes) - s.size; over > 0 {
			clear(s.pages[i][int64(s.pageBytes)-over:])
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

// fill makes a page that compresses about as memory does.
func fill(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		if r.IntN(3) == 0 {
			binary.LittleEndian.PutUint64(b[i:], r.Uint64()>>uint(r.IntN(40)))
		}
	}
	b[0] |= 1 // never a hole
	return b
}

func (s *space) changes(index []int64) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		buf := make([]byte, s.pageBytes)
		for _, i := range index {
			clear(buf)
			copy(buf, s.pages[i])
			if !yield(Page{i, buf}, nil) {
				return
			}
		}
	}
}

func (s *space) all() iter.Seq2[Page, error] {
	return s.changes(slices.Sorted(maps.Keys(s.pages)))
}

func (s *space) bytes() []byte {
	b := make([]byte, s.size)
	for i, p := range s.pages {
		copy(b[i*int64(s.pageBytes):], p)
	}
	return b
}

func newWriter(t testing.TB, s *Store) *Writer {
	t.Helper()
	w, err := s.NewWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func writeMap(t testing.TB, w *Writer, parent Map, sp *space, changed iter.Seq2[Page, error]) (Map, MapStats) {
	t.Helper()
	m, st, err := w.WriteMap(t.Context(), parent, sp.size, sp.pageBytes, changed)
	if err != nil {
		t.Fatal(err)
	}
	return m, st
}

func flush(t testing.TB, w *Writer) {
	t.Helper()
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// diskCommit is the smallest commit there is of a map.
func diskCommit(m Map, parents ...Hash) *Commit {
	return &Commit{Kind: KindDisk, Disk: m, Parents: parents, Created: time.Unix(1700000000, 0)}
}

func commit(t testing.TB, w *Writer, c *Commit, tx Update) Hash {
	t.Helper()
	id, err := w.Commit(t.Context(), c, tx)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// memoryFile is an unnamed file in memory.
func memoryFile(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("space", 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "space")
}

// materialize returns the bytes of a map, read back through a sparse file.
func materialize(t testing.TB, s *Store, m Map) []byte {
	t.Helper()
	f := memoryFile(t)
	defer f.Close()
	if err := s.Materialize(t.Context(), m, f, MaterializeOptions{Verify: true}); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, m.SizeBytes))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantSpace(t testing.TB, s *Store, m Map, sp *space) {
	t.Helper()
	if !bytes.Equal(materialize(t, s, m), sp.bytes()) {
		t.Fatalf("map %s does not hold what was written", m.Root.Short())
	}
}

func wantClean(t testing.TB, s *Store) FsckReport {
	t.Helper()
	r, err := s.Fsck(t.Context(), FsckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Errorf("fsck: %s %s: %s", p.Kind, p.Object, p.Detail)
	}
	return r
}

func testRand(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed, 0x5ee7))
}

var background = context.Background()

// memoryDir is a temporary directory that costs no disk writes, for tests that
// open a great many stores and take durability from a faultFS, not the disk.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "branches")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
