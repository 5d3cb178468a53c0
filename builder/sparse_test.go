package builder

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func TestDigestSparse(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, 300<<10)
	for k := range data {
		data[k] = byte(r.Uint32())
	}
	const size = 40 << 20
	// write makes a file with data at the offsets, and zeroes written where hole
	// is false.
	write := func(name string, hole bool, at ...int64) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if hole {
			err = f.Truncate(size)
		} else {
			_, err = f.Write(make([]byte, size))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, off := range at {
			if _, err := f.WriteAt(data, off); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	digest := func(f *os.File) string {
		d, err := digestSparse(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if !isDigest(d) {
			t.Errorf("got %q", d)
		}
		return d
	}
	// Across the border of two pieces, at the very end, and in the middle.
	offsets := []int64{digestPiece - 1000, 20<<20 + 5, size - 300<<10}
	want := digest(write("holes", true, offsets...))
	if got := digest(write("zeroes", false, offsets...)); got != want {
		t.Errorf("zeroes: got %s, want %s", got, want)
	}
	for name, f := range map[string]*os.File{
		"moved by a block": write("moved", true, offsets[0], offsets[1]+digestBlock, offsets[2]),
		"moved by a piece": write("piece", true, offsets[0], offsets[1]+digestPiece, offsets[2]),
		"less":             write("less", true, offsets[0], offsets[1]),
		"all zero":         write("zero", true),
	} {
		if got := digest(f); got == want {
			t.Errorf("%s: same digest", name)
		}
	}
	longer := write("longer", true, offsets...)
	if err := longer.Truncate(size + 4096); err != nil {
		t.Fatal(err)
	}
	if digest(longer) == want {
		t.Error("longer by a hole: same digest")
	}
	// A vector: the digest is part of image ids and must never change.
	empty := write("empty", true)
	if err := empty.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if got, want := digest(empty), "sha256:16ecb55a7d1a522bc346f3f5fc09b615e430ee9542faaf16fb3ee2fb6af22bb9"; got != want {
		t.Errorf("empty file: got %s, want %s", got, want)
	}
}
