package runtime

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/runtime/guestmem"
)

// sparseFile makes a file of size bytes with random data at some offsets.
func sparseFile(t *testing.T, path string, size int64, at ...int64) []byte {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, uint64(len(at))))
	for _, off := range at {
		b := make([]byte, 5000)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b = b[:min(int64(len(b)), size-off)]
		copy(want[off:], b)
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

func TestCloneFileKeepsContentAndHoles(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	want := sparseFile(t, src, 64<<20, 0, 1<<20, 40<<20+123, 64<<20-100)
	if err := cloneFile(t.Context(), src, dst, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("copy differs from its source")
	}
	if a, b := allocatedBytes(src), allocatedBytes(dst); b > a+1<<20 {
		t.Errorf("copy takes %d bytes on disk, source %d: holes were filled", b, a)
	}
	if err := cloneFile(t.Context(), src, dst, 0o600); err == nil {
		t.Error("an existing file was overwritten")
	}
}

func TestCloneFileLeavesNothingOnFailure(t *testing.T) {
	dir := t.TempDir()
	dst := filepath.Join(dir, "b")
	if err := cloneFile(t.Context(), filepath.Join(dir, "missing"), dst, 0o600); err == nil {
		t.Fatal("no error for a missing source")
	}
	if exists(dst) {
		t.Error("a file was left behind")
	}
}

func TestPagesOfYieldsWhatDiffers(t *testing.T) {
	const page = 4096
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	size := int64(3<<20 + page/2) // not a whole number of pages
	sparseFile(t, a, size, 0, 1<<20)
	now := sparseFile(t, b, size, 0, 1<<20)
	edit := map[int64]byte{5 * page: 1, (1<<20)/page*page + 17: 2, size - 1: 3}
	f, err := os.OpenFile(b, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := map[int64]bool{}
	for off, v := range edit {
		now[off] ^= v
		if _, err := f.WriteAt(now[off:off+1], off); err != nil {
			t.Fatal(err)
		}
		want[off/page] = true
	}
	before, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	all := func(yield func(int64, int64) bool) { yield(0, (size+page-1)/page*page) }
	got := map[int64]bool{}
	last := int64(-1)
	for p, err := range pagesOf(f, before, page, all) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Index <= last {
			t.Errorf("page %d after page %d", p.Index, last)
		}
		last = p.Index
		got[p.Index] = true
		full := make([]byte, page)
		copy(full, now[p.Index*page:])
		if !bytes.Equal(p.Data, full) {
			t.Errorf("page %d has other content", p.Index)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got pages %v, want %v", got, want)
	}
	for i := range want {
		if !got[i] {
			t.Errorf("page %d is missing", i)
		}
	}
}

// What was discarded on the disk is a hole now and data before: it has changed.
func TestExtentsOfSeesNewHoles(t *testing.T) {
	dir := t.TempDir()
	size := int64(8 << 20)
	before, now := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	sparseFile(t, before, size, 2<<20)
	sparseFile(t, now, size, 6<<20)
	fb, err := os.Open(before)
	if err != nil {
		t.Fatal(err)
	}
	defer fb.Close()
	fn, err := os.Open(now)
	if err != nil {
		t.Fatal(err)
	}
	defer fn.Close()
	zeroes := map[int64]bool{}
	for p, err := range pagesOf(fn, fb, diskPageBytes, extentsOf(fn, fb, size)) {
		if err != nil {
			t.Fatal(err)
		}
		zeroes[p.Index] = bytes.Count(p.Data, []byte{0}) == len(p.Data)
	}
	if z, ok := zeroes[(2<<20)/diskPageBytes]; !ok || !z {
		t.Errorf("page of the new hole: reported %v, zero %v", ok, z)
	}
	if z, ok := zeroes[(6<<20)/diskPageBytes]; !ok || z {
		t.Errorf("page of the new data: reported %v, zero %v", ok, z)
	}
}

// Completing a dump must leave the changed pages alone and take all others.
func TestSnapshotComplete(t *testing.T) {
	dir := t.TempDir()
	size := int64(4 << 20)
	old := dump{filepath.Join(dir, "old")}
	fresh := dump{filepath.Join(dir, "new")}
	for _, d := range []dump{old, fresh} {
		if err := os.Mkdir(d.dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := sparseFile(t, old.memory(), size, 0, 1<<20, 3<<20)
	changed := new(guestmem.PageSet)
	changed.AddRange(0, 1)
	changed.AddRange((2<<20)/guestmem.PageBytes, 3)
	f, err := os.Create(fresh.memory())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for first, count := range changed.Runs() {
		b := bytes.Repeat([]byte{0xee}, int(count*guestmem.PageBytes))
		copy(want[first*guestmem.PageBytes:], b)
		if _, err := f.WriteAt(b, first*guestmem.PageBytes); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	s := &snapshot{dump: fresh, since: branches.Hash{1}, changed: changed}
	if err := s.complete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(fresh.memory())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("completed dump differs")
	}
}
