package guestmem

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
)

func TestDiscard(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		p := startStandIn(t, 512)
		m := p.open()
		tr := mustTrack(t, m, name)
		file, err := os.ReadFile(p.target.MemoryFile)
		if err != nil {
			t.Fatal(err)
		}
		p.do("write", 0, 512, 1)
		collect(t, tr)
		want := p.contents(m)

		// Across the pieces, single pages, more calls than one stop makes, and
		// signals in between.
		gone := pagesOf(250, 12)
		for n := int64(0); n < 200; n += 2 {
			gone.Add(n)
		}
		p.do("spin", 300, 100, 7)
		for range 20 {
			p.cmd.Process.Signal(syscall.SIGUSR1)
		}
		given, err := m.Discard(t.Context(), gone)
		if err != nil {
			t.Fatal(err)
		}
		p.do("halt", 0, 0, 0)
		if given != gone.Bytes() {
			t.Errorf("gave %d bytes back, want %d", given, gone.Bytes())
		}
		if p.do("signals", 0, 1, 0) == 0 {
			t.Error("signals were swallowed")
		}

		for first, count := range gone.Runs() {
			copy(want[first*PageBytes:], file[first*PageBytes:(first+count)*PageBytes])
		}
		got := p.contents(m)
		for n := int64(0); n < 512; n++ {
			if n >= 300 && n < 400 {
				continue // spun
			}
			if !bytes.Equal(got[n*PageBytes:(n+1)*PageBytes], want[n*PageBytes:(n+1)*PageBytes]) {
				t.Errorf("page %d (discarded: %v) has other contents than it should", n, gone.Has(n))
			}
		}
		written, err := m.Written(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		left := pagesOf(0, 512)
		left.Subtract(gone)
		if !written.Equal(left) {
			t.Errorf("after the discard %v differ from the file, want %v", written, left)
		}
		changed := collect(t, tr)
		missing := gone.Clone()
		missing.Subtract(changed)
		if missing.Len() > 0 {
			t.Errorf("pages %v fell back to the file and are not reported as changed", missing)
		}
		after, err := os.ReadFile(p.target.MemoryFile)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file, after) {
			t.Error("the memory file was changed")
		}

		if _, err := m.Discard(t.Context(), pagesOf(511, 2)); err == nil {
			t.Error("a page beyond the memory was taken")
		}
		p.kill()
		if _, err := m.Discard(t.Context(), pagesOf(0, 1)); !errors.Is(err, ErrGone) {
			t.Errorf("of an ended process: got %v, want ErrGone", err)
		}
	})
}
