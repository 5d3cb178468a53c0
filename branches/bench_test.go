package branches

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// guest is a space of 512 MiB of which about 117 MiB are in use, filled with
// what a guest's memory mostly is: pages of programs, libraries and text.
type guest struct {
	pages map[int64][]byte
	order []int64
}

const guestBytes = 512 << 20

func newGuest(tb testing.TB) *guest {
	tb.Helper()
	const used = 117 << 20
	data := make([]byte, 0, used)
	_ = filepath.WalkDir("/usr/lib", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil || len(b) > 8<<20 {
			return nil
		}
		b = append(b, make([]byte, -len(b)&(MemoryPageBytes-1))...)
		data = append(data, b[:min(len(b), used-len(data))]...)
		if len(data) == used {
			return fs.SkipAll
		}
		return nil
	})
	r := rand.New(rand.NewPCG(1, 2))
	for len(data) < used {
		data = append(data, fill(r, MemoryPageBytes)...)
	}
	g := &guest{pages: map[int64][]byte{}}
	// In runs with gaps, as a guest's memory is.
	at := int64(0)
	for len(data) > 0 {
		for range min(1+r.IntN(400), len(data)/MemoryPageBytes) {
			g.pages[at] = data[:MemoryPageBytes]
			g.order = append(g.order, at)
			data = data[MemoryPageBytes:]
			at++
		}
		at += int64(r.IntN(1000))
		if left := int64(guestBytes/MemoryPageBytes) - at; left < int64(len(data)/MemoryPageBytes)+1000 {
			at = min(at, int64(guestBytes/MemoryPageBytes)-int64(len(data)/MemoryPageBytes))
		}
	}
	return g
}

func (g *guest) seq(index []int64) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for _, i := range index {
			if !yield(Page{i, g.pages[i]}, nil) {
				return
			}
		}
	}
}

// change dirties about n pages: small writes, as programs do.
func (g *guest) change(r *rand.Rand, n int) []int64 {
	var out []int64
	for _, i := range g.order {
		if r.IntN(len(g.order)) >= n {
			continue
		}
		p := append([]byte(nil), g.pages[i]...)
		for range 16 {
			p[r.IntN(len(p))] = byte(r.Uint32())
		}
		g.pages[i] = p
		out = append(out, i)
	}
	return out
}

// meter measures what is between start and stop, by the clock and in processor
// time: on a shared machine the latter says more. It takes the place of the
// benchmark's own timer, which would have to be stopped for every preparation.
type meter struct {
	b        *testing.B
	at       time.Time
	used     time.Duration
	wall     time.Duration
	cpu      time.Duration
	measured int
}

func (m *meter) start() { m.used, m.at = m.rusage(), time.Now() }

func (m *meter) stop() {
	m.wall += time.Since(m.at)
	m.cpu += m.rusage() - m.used
	m.measured++
}

func (m *meter) rusage() time.Duration {
	var self, children unix.Rusage
	if err := errors.Join(unix.Getrusage(unix.RUSAGE_SELF, &self), unix.Getrusage(unix.RUSAGE_CHILDREN, &children)); err != nil {
		m.b.Fatal(err)
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

func (m *meter) report(bytes int64) {
	n := float64(m.measured)
	m.b.ReportMetric(float64(m.wall.Nanoseconds())/n, "ns/op")
	m.b.ReportMetric(float64(m.cpu.Microseconds())/1000/n, "cpu-ms/op")
	m.b.ReportMetric(float64(bytes)*n/1e6/m.wall.Seconds(), "MB/s")
}

func (g *guest) dump(b *testing.B) *os.File {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "dump"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	if err := f.Truncate(guestBytes); err != nil {
		b.Fatal(err)
	}
	for i, p := range g.pages {
		if _, err := f.WriteAt(p, i*MemoryPageBytes); err != nil {
			b.Fatal(err)
		}
	}
	return f
}

// BenchmarkFirstCommit stores a whole guest; BenchmarkLaterCommit stores what
// changed of it; both beside a zstd stream of the whole, which is what there
// would be without a store.
func BenchmarkFirstCommit(b *testing.B) {
	g := newGuest(b)
	used := int64(len(g.order) * MemoryPageBytes)
	b.Run("store", func(b *testing.B) {
		mt := meter{b: b}
		defer func() { mt.report(used) }()
		for b.Loop() {
			s := openStore(b, Options{Dir: filepath.Join(b.TempDir(), "store")})
			mt.start()
			w := newWriter(b, s)
			m, st, err := w.WriteMap(background, Map{}, guestBytes, MemoryPageBytes, g.seq(g.order))
			if err != nil {
				b.Fatal(err)
			}
			commit(b, w, diskCommit(m), Update{})
			mt.stop()
			s.Close()
			b.ReportMetric(float64(st.BytesStored)/(1<<20), "MiB-stored")
		}
	})
	b.Run("zstd", func(b *testing.B) { benchmarkDump(b, g, used) })
}

func BenchmarkLaterCommit(b *testing.B) {
	g := newGuest(b)
	s := openStore(b, Options{Dir: filepath.Join(b.TempDir(), "store")})
	w := newWriter(b, s)
	m, _, err := w.WriteMap(background, Map{}, guestBytes, MemoryPageBytes, g.seq(g.order))
	if err != nil {
		b.Fatal(err)
	}
	commit(b, w, diskCommit(m), Update{})
	r := rand.New(rand.NewPCG(3, 4))
	used := int64(len(g.order) * MemoryPageBytes)
	b.Run("store", func(b *testing.B) {
		mt := meter{b: b}
		defer func() { mt.report(used) }()
		for b.Loop() {
			changed := g.change(r, 2400)
			mt.start()
			w := newWriter(b, s)
			next, st, err := w.WriteMap(background, m, guestBytes, MemoryPageBytes, g.seq(changed))
			if err != nil {
				b.Fatal(err)
			}
			commit(b, w, diskCommit(next), Update{})
			w.Close()
			mt.stop()
			m = next
			b.ReportMetric(float64(st.BytesStored)/(1<<20), "MiB-stored")
		}
	})
	b.Run("zstd", func(b *testing.B) { benchmarkDump(b, g, used) })
}

func benchmarkDump(b *testing.B, g *guest, used int64) {
	mt := meter{b: b}
	defer func() { mt.report(used) }()
	for b.Loop() {
		mt.start()
		f, err := os.Create(filepath.Join(b.TempDir(), "zst"))
		if err != nil {
			b.Fatal(err)
		}
		enc, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			b.Fatal(err)
		}
		zero := make([]byte, MemoryPageBytes)
		at := int64(0)
		for _, i := range g.order {
			for ; at < i; at++ {
				enc.Write(zero)
			}
			enc.Write(g.pages[i])
			at++
		}
		for ; at < guestBytes/MemoryPageBytes; at++ {
			enc.Write(zero)
		}
		if err := enc.Close(); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		mt.stop()
		n, _ := f.Seek(0, io.SeekCurrent)
		b.ReportMetric(float64(n)/(1<<20), "MiB-stored")
		f.Close()
	}
}

// BenchmarkMaterialize writes a guest's memory out, beside cp of the dump.
func BenchmarkMaterialize(b *testing.B) {
	g := newGuest(b)
	s := openStore(b, Options{Dir: filepath.Join(b.TempDir(), "store")})
	w := newWriter(b, s)
	m, _, err := w.WriteMap(background, Map{}, guestBytes, MemoryPageBytes, g.seq(g.order))
	if err != nil {
		b.Fatal(err)
	}
	commit(b, w, diskCommit(m), Update{})
	used := int64(len(g.order) * MemoryPageBytes)
	b.Run("store", func(b *testing.B) {
		mt := meter{b: b}
		defer func() { mt.report(used) }()
		out, err := os.Create(filepath.Join(b.TempDir(), "out"))
		if err != nil {
			b.Fatal(err)
		}
		defer out.Close()
		for b.Loop() {
			mt.start()
			if err := s.Materialize(background, m, out, MaterializeOptions{}); err != nil {
				b.Fatal(err)
			}
			mt.stop()
		}
	})
	b.Run("cp", func(b *testing.B) {
		mt := meter{b: b}
		defer func() { mt.report(used) }()
		f := g.dump(b)
		for b.Loop() {
			mt.start()
			if out, err := exec.Command("cp", "--sparse=always", f.Name(), f.Name()+".copy").CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			mt.stop()
		}
	})
}

func BenchmarkOpenClose(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	openStore(b, Options{Dir: dir}).Close()
	for b.Loop() {
		s, err := Open(background, Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
