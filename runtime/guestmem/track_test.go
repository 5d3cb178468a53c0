package guestmem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// eachMechanism runs f with every tracker this kernel has.
func eachMechanism(t *testing.T, f func(t *testing.T, name string)) {
	for _, name := range []string{UffdWP, SoftDirty, Untracked} {
		t.Run(name, func(t *testing.T) {
			p := startStandIn(t, 4)
			if tr, err := p.open().track(context.Background(), name); err != nil {
				t.Skipf("not on this host: %v", err)
			} else {
				tr.Close()
			}
			f(t, name)
		})
	}
}

func mustTrack(t testing.TB, m *Memory, name string) Tracker {
	t.Helper()
	tr, err := m.track(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func TestCollect(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		p := startStandIn(t, 256)
		m := p.open()
		tr := mustTrack(t, m, name)
		if tr.Name() != name {
			t.Errorf("got name %q, want %q", tr.Name(), name)
		}
		p.do("read", 0, 256, 0)
		p.do("write", 10, 5, 1)
		p.do("write", 126, 4, 1) // across the pieces
		steps := []struct {
			what  string
			do    func()
			want  *PageSet // exactly, when tracked
			atAll *PageSet // at most, when not
		}{
			{"everything since the mapping", func() {}, pagesOf(10, 5, 126, 4), nil},
			{"nothing", func() {}, pagesOf(), pagesOf(10, 5, 126, 4)},
			{"reads", func() { p.do("read", 0, 256, 0) }, pagesOf(), pagesOf(10, 5, 126, 4)},
			{"again", func() { p.do("write", 12, 1, 2) }, pagesOf(12, 1), pagesOf(10, 5, 126, 4)},
			{"the same value", func() { p.do("write", 12, 1, 2) }, pagesOf(12, 1), pagesOf(10, 5, 126, 4)},
			{"a page of the file", func() { p.do("write", 40, 1, 2) }, pagesOf(40, 1), pagesOf(10, 5, 40, 1, 126, 4)},
			{"discarded", func() { p.do("discard", 10, 2, 0) }, pagesOf(10, 2), pagesOf(10, 5, 40, 1, 126, 4)},
			{"still discarded", func() {}, pagesOf(), pagesOf(12, 3, 40, 1, 126, 4)},
			{"discarded and read", func() { p.do("discard", 12, 1, 0); p.do("read", 10, 5, 0) }, pagesOf(12, 1), pagesOf(12, 3, 40, 1, 126, 4)},
			{"discarded earlier, written", func() { p.do("write", 10, 1, 9) }, pagesOf(10, 1), pagesOf(10, 1, 13, 2, 40, 1, 126, 4)},
			{"written and discarded", func() { p.do("write", 13, 1, 9); p.do("discard", 13, 1, 0) }, pagesOf(13, 1), pagesOf(10, 1, 13, 2, 40, 1, 126, 4)},
			{"discarded and written", func() { p.do("discard", 14, 1, 0); p.do("write", 14, 1, 9) }, pagesOf(14, 1), pagesOf(10, 1, 14, 1, 40, 1, 126, 4)},
			{"discarded, never written", func() { p.do("discard", 200, 10, 0) }, pagesOf(), pagesOf(10, 1, 14, 1, 40, 1, 126, 4)},
			{"all", func() { p.do("write", 0, 256, 3) }, pagesOf(0, 256), pagesOf(0, 256)},
			{"one of all", func() { p.do("write", 255, 1, 3) }, pagesOf(255, 1), pagesOf(0, 256)},
		}
		for _, s := range steps {
			s.do()
			got := collect(t, tr)
			want := s.want
			if name == Untracked && s.atAll != nil {
				want = s.atAll
			}
			if !got.Equal(want) {
				t.Errorf("%s: got %v, want %v", s.what, got, want)
			}
		}
	})
}

// TestCollectKeepsACopyRight is the property everything rests on: whatever
// happens to the pages, laying what Collect reports over the copy made so far
// gives the memory's contents.
func TestCollectKeepsACopyRight(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		const pages = 512
		p := startStandIn(t, pages)
		m := p.open()
		tr := mustTrack(t, m, name)
		dst := copyOf(t, p)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		verbs := []string{"write", "write", "write", "read", "discard", "zero"}
		for round := range rounds(120) {
			for range r.IntN(6) {
				first := r.Int64N(pages)
				p.do(verbs[r.IntN(len(verbs))], first, 1+r.Int64N(min(40, pages-first)), int64(round))
			}
			before := roundTrip(t, tr.State().Unsure())
			set := collect(t, tr)
			switch r.IntN(8) {
			case 0: // the commit failed
				tr.Return(set)
				continue
			case 1: // the process died before the commit was durable
				p.do("write", r.Int64N(pages), 1, int64(round))
				collect(t, tr)
				tr = mustResume(t, p, before)
				continue
			case 2: // another process goes on
				if _, err := m.Copy(t.Context(), set, dst); err != nil {
					t.Fatal(err)
				}
				tr = mustResume(t, p, roundTrip(t, tr.State()))
			default:
				if _, err := m.Copy(t.Context(), set, dst); err != nil {
					t.Fatal(err)
				}
			}
			if n := differs(t, p, m, dst); n >= 0 {
				t.Fatalf("round %d: page %d differs from its copy", round, n)
			}
		}
	})
}

// TestCollectWhileRunning pre-copies a process that writes all the time.
func TestCollectWhileRunning(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		p := startStandIn(t, 2048)
		m := p.open()
		tr := mustTrack(t, m, name)
		dst := copyOf(t, p)
		last := int64(0)
		for round := range rounds(10) {
			p.do("spin", 0, 2048, int64(round))
			for range 5 {
				set := collect(t, tr)
				if _, err := m.Copy(t.Context(), set, dst); err != nil {
					t.Fatal(err)
				}
			}
			rounds := p.do("halt", 0, 0, 0)
			if rounds == last {
				t.Fatal("the process wrote nothing meanwhile")
			}
			last = rounds
			set, err := tr.Recollect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held, err := NewContents(set.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Read(t.Context(), set, held); err != nil {
				t.Fatal(err)
			}
			if n, err := held.Store(t.Context(), dst, 0); err != nil || n != set.Bytes() {
				t.Fatalf("stored %d of %d bytes: %v", n, set.Bytes(), err)
			}
			held.Free()
			if n := differs(t, p, m, dst); n >= 0 {
				t.Fatalf("round %d: page %d differs from its copy", round, n)
			}
		}
	})
}

func TestRecollect(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		p := startStandIn(t, 256)
		tr := mustTrack(t, p.open(), name)
		p.do("write", 10, 5, 1)
		again := func() *PageSet {
			t.Helper()
			set, err := tr.Recollect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return set
		}
		if got := again(); !got.Equal(pagesOf(10, 5)) {
			t.Errorf("before any Collect: got %v", got)
		}
		if name == Untracked {
			return
		}
		collect(t, tr)
		p.do("read", 0, 256, 0)
		p.do("write", 12, 1, 2)
		p.do("write", 200, 2, 2)
		if got := again(); !got.Equal(pagesOf(12, 1, 200, 2)) {
			t.Errorf("after writes: got %v", got)
		}
		p.do("discard", 10, 1, 0)
		late := again()
		p.do("discard", 200, 1, 0)
		late.Union(collect(t, tr))
		if !late.Equal(pagesOf(10, 1, 200, 1)) {
			t.Errorf("after discards: got %v", late)
		}
		set := pagesOf(100, 3)
		tr.Return(set)
		if got := again(); !got.Equal(set) {
			t.Errorf("after Return: got %v", got)
		}
	})
}

func TestResumeRefuses(t *testing.T) {
	p := startStandIn(t, 16)
	m := p.open()
	for what, s := range map[string]State{
		"no mechanism":       {},
		"no such descriptor": {Mechanism: UffdWP, FD: 999},
		"another file":       {Mechanism: UffdWP, FD: 0},
		"damaged set":        {Mechanism: Untracked, Known: []byte{9}},
	} {
		if _, err := m.Resume(t.Context(), s); !errors.Is(err, ErrTracker) {
			t.Errorf("%s: got %v, want ErrTracker", what, err)
		}
	}
}

// TestTrackerIsReused: losing states must not cost descriptors.
func TestTrackerIsReused(t *testing.T) {
	p := startStandIn(t, 16)
	m := p.open()
	tr, err := m.track(t.Context(), UffdWP)
	if err != nil {
		t.Skipf("not on this host: %v", err)
	}
	collect(t, tr)
	tr.Close()
	p.do("write", 3, 1, 1)
	fd := tr.State().FD
	again := mustTrack(t, m, UffdWP)
	if got := again.State().FD; got != fd {
		t.Errorf("got descriptor %d, want %d again", got, fd)
	}
	if got := collect(t, again); !got.Equal(pagesOf(3, 1)) {
		t.Errorf("first Collect: got %v", got)
	}
}

// TestInjectionIsHarmless borrows a thread over and over while it is busy with
// system calls, memory and signals, and checks that it noticed nothing.
func TestInjectionIsHarmless(t *testing.T) {
	p := startStandIn(t, 512)
	m := p.open()
	if tr, err := m.track(t.Context(), UffdWP); err != nil {
		t.Skipf("not on this host: %v", err)
	} else {
		tr.Close()
	}
	p.do("spin", 0, 512, 7)
	const rounds = 200
	fds := map[int]bool{}
	for range rounds {
		p.cmd.Process.Signal(syscall.SIGUSR1)
		fd, err := injectUserfaultfd(t.Context(), p.target.PID)
		if err != nil {
			t.Fatal(err)
		}
		fds[fd] = true
		time.Sleep(time.Millisecond)
	}
	if len(fds) != rounds {
		t.Errorf("%d injections made %d descriptors", rounds, len(fds))
	}
	if p.do("halt", 0, 0, 0) == 0 {
		t.Error("the process stood still")
	}
	if got := p.do("signals", 0, 1, 0); got == 0 {
		t.Error("signals were swallowed")
	}
	p.do("write", 0, 512, 1)
	if got, err := m.Written(t.Context()); err != nil || got.Len() != 512 {
		t.Errorf("after all: got %v, %v", got, err)
	}
}

func TestGone(t *testing.T) {
	eachMechanism(t, func(t *testing.T, name string) {
		p := startStandIn(t, 64)
		m := p.open()
		tr := mustTrack(t, m, name)
		p.do("write", 0, 8, 1)
		set := collect(t, tr)
		p.kill()
		if _, err := tr.Collect(t.Context()); !errors.Is(err, ErrGone) {
			t.Errorf("Collect: got %v, want ErrGone", err)
		}
		if _, err := m.Written(t.Context()); !errors.Is(err, ErrGone) {
			t.Errorf("Written: got %v, want ErrGone", err)
		}
		if _, err := m.Copy(t.Context(), set, copyOf(t, p)); !errors.Is(err, ErrGone) {
			t.Errorf("Copy: got %v, want ErrGone", err)
		}
		if _, err := Open(p.target); !errors.Is(err, ErrGone) {
			t.Errorf("Open: got %v, want ErrGone", err)
		}
	})
}

// rounds is how often to repeat something random.
func rounds(n int) int {
	if testing.Short() {
		return max(3, n/5)
	}
	return n
}

func mustResume(t *testing.T, p *process, s State) Tracker {
	t.Helper()
	tr, err := p.open().Resume(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func roundTrip(t *testing.T, s State) (out State) {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// copyOf is a dense copy of the memory file: the parent commit's dump.
func copyOf(t *testing.T, p *process) *os.File {
	t.Helper()
	data, err := os.ReadFile(p.target.MemoryFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// differs is the first page that is not in dst as it is in the process, or -1.
func differs(t *testing.T, p *process, m *Memory, dst *os.File) int64 {
	t.Helper()
	got, err := os.ReadFile(dst.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := p.contents(m)
	for n := int64(0); n < m.Pages(); n++ {
		if !bytes.Equal(got[n*PageBytes:][:PageBytes], want[n*PageBytes:][:PageBytes]) {
			return n
		}
	}
	return -1
}
