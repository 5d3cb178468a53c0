package guestmem

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const mib = 1 << 20 / PageBytes // pages

// BenchmarkLook compares the ways to find changed pages, with all of RAM
// written: the worst case for every one of them.
func BenchmarkLook(b *testing.B) {
	for _, size := range []int64{512, 4096} {
		p := startStandIn(b, size*mib)
		m := p.open()
		p.do("write", 0, size*mib, 1)
		b.Run(fmt.Sprintf("read/%dMiB", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := m.readAnonymous(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		if !m.scanIoctl {
			continue
		}
		b.Run(fmt.Sprintf("scan/%dMiB", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := m.scanAnonymous(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		tr, err := m.track(b.Context(), UffdWP)
		if err != nil {
			b.Log(err)
			continue
		}
		b.Run(fmt.Sprintf("arm/%dMiB", size), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p.do("write", 0, size*mib, 2)
				b.StartTimer()
				collect(b, tr)
			}
		})
		collect(b, tr)
		b.Run(fmt.Sprintf("collect/%dMiB", size), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p.do("write", 1000, 512, 2)
				b.StartTimer()
				if got := collect(b, tr); got.Len() != 512 {
					b.Fatalf("got %d pages", got.Len())
				}
			}
		})
		b.Run(fmt.Sprintf("recollect/%dMiB", size), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p.do("write", 1000, 512, 2)
				b.StartTimer()
				if got, err := tr.Recollect(b.Context()); err != nil || got.Len() != 512 {
					b.Fatalf("got %d pages, %v", got.Len(), err)
				}
			}
		})
		// What the guest pays: first writes to protected pages and the next.
		for _, guest := range []string{"protected", "unprotected"} {
			b.Run(fmt.Sprintf("guest-write/%s/%dMiB", guest, size), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					if guest == "protected" {
						collect(b, tr)
					}
					b.StartTimer()
					p.do("write", 0, 64*mib, 3)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(64*mib), "ns/page")
			})
		}
		p.kill()
	}
}

func BenchmarkCopy(b *testing.B) {
	p := startStandIn(b, 512*mib)
	m := p.open()
	p.do("write", 0, 512*mib, 1)
	sets := map[string]*PageSet{}
	for _, size := range []int64{2, 20, 117} {
		sets[fmt.Sprintf("run/%dMiB", size)] = pagesOf(1000, size*mib)
		scattered := new(PageSet)
		for n := range size * mib {
			scattered.Add(n * 4)
		}
		sets[fmt.Sprintf("scattered/%dMiB", size)] = scattered
	}
	dir := os.Getenv("SIETCH_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	for name, set := range sets {
		b.Run("hold/"+name, func(b *testing.B) {
			b.SetBytes(set.Bytes())
			c, err := NewContents(set.Bytes())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Free()
			for b.Loop() {
				if err := m.Read(b.Context(), set, c); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("copy/"+name, func(b *testing.B) {
			b.SetBytes(set.Bytes())
			path := filepath.Join(dir, "dump")
			for b.Loop() {
				b.StopTimer()
				os.Remove(path)
				dst, err := os.Create(path)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if n, err := m.Copy(b.Context(), set, dst); err != nil || n != set.Bytes() {
					b.Fatal(n, err)
				}
				b.StopTimer()
				dst.Close()
				b.StartTimer()
			}
			os.Remove(path)
		})
	}
}
