package guestmem

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopy writes over a dense file, a new one and one that cannot have holes.
func TestCopy(t *testing.T) {
	p := startStandIn(t, 1024)
	m := p.open()
	p.do("write", 0, 700, 1)
	p.do("zero", 100, 50, 0)
	pages := pagesOf(3, 1, 5, 1, 90, 400, 510, 4, 1023, 1) // 510: across the pieces
	for n := int64(600); n < 1000; n += 2 {
		pages.Add(n)
	}
	want := p.contents(m)
	for _, c := range []struct {
		name  string
		fill  byte
		dense bool
		size  int
	}{{"new", 0, false, 0}, {"shorter", 7, true, 300 * PageBytes}, {"dense", 9, true, 1024 * PageBytes}} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dump")
			if err := os.WriteFile(path, bytes.Repeat([]byte{c.fill}, c.size), 0o600); err != nil {
				t.Fatal(err)
			}
			dst, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer dst.Close()
			if n, err := m.Copy(t.Context(), pages, dst); err != nil || n != pages.Bytes() {
				t.Fatalf("copied %d of %d bytes: %v", n, pages.Bytes(), err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1024*PageBytes {
				t.Fatalf("got %d bytes, want %d", len(got), 1024*PageBytes)
			}
			for n := range m.Pages() {
				expect := bytes.Repeat([]byte{c.fill}, PageBytes)
				if n*PageBytes >= int64(c.size) {
					expect = zeroPage[:]
				}
				if pages.Has(n) {
					expect = want[n*PageBytes:][:PageBytes]
				}
				if !bytes.Equal(got[n*PageBytes:][:PageBytes], expect) {
					t.Fatalf("page %d is wrong", n)
				}
			}
			if c.dense {
				return
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(dst.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			if most := (pages.Len() - 50 + 16) * PageBytes / 512; st.Blocks > most {
				t.Errorf("new file has %d blocks, want at most %d: zero pages were written", st.Blocks, most)
			}
		})
	}
}

func TestReadAndStore(t *testing.T) {
	p := startStandIn(t, 1024)
	m := p.open()
	p.do("write", 0, 1024, 1)
	want := p.contents(m)
	c, err := NewContents(600 * PageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Free()
	pages := new(PageSet)
	for n := int64(1); n < 1024; n += 2 {
		pages.Add(n)
	}
	if err := m.Read(t.Context(), pages, c); err != nil {
		t.Fatal(err)
	}
	p.do("write", 0, 1024, 99) // what is held stays as it was
	seen := int64(0)
	for n, data := range c.All() {
		if !pages.Has(n) || !bytes.Equal(data, want[n*PageBytes:][:PageBytes]) {
			t.Fatalf("page %d is wrong", n)
		}
		seen++
	}
	if seen != pages.Len() {
		t.Errorf("got %d pages, want %d", seen, pages.Len())
	}
	if err := m.Read(t.Context(), pagesOf(0, 601), c); err == nil || c.Pages().Len() != 0 {
		t.Errorf("a set that does not fit: got %v, holding %d pages", err, c.Pages().Len())
	}
	if err := m.Read(t.Context(), pagesOf(1020, 5), c); err == nil {
		t.Error("a page beyond guest memory was read")
	}
	if _, err := m.Copy(t.Context(), pagesOf(1020, 5), copyOf(t, p)); err == nil {
		t.Error("a page beyond guest memory was copied")
	}
}

// TestWritten holds both ways of looking against the contents.
func TestWritten(t *testing.T) {
	p := startStandIn(t, 1024)
	m := p.open()
	p.do("read", 0, 1024, 0)
	p.do("write", 7, 1, 1)
	p.do("write", 500, 30, 1)
	p.do("discard", 505, 2, 0)
	want := pagesOf(7, 1, 500, 5, 507, 23)
	for name, look := range map[string]func() (*PageSet, error){
		"read": func() (*PageSet, error) { return m.readAnonymous(t.Context()) },
		"best": func() (*PageSet, error) { return m.Written(t.Context()) },
	} {
		if got, err := look(); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	file, err := os.ReadFile(p.target.MemoryFile)
	if err != nil {
		t.Fatal(err)
	}
	now := p.contents(m)
	for n := range m.Pages() {
		same := bytes.Equal(now[n*PageBytes:][:PageBytes], file[n*PageBytes:][:PageBytes])
		if same == want.Has(n) {
			t.Errorf("page %d: same as the file: %v, reported as written: %v", n, same, want.Has(n))
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	p := startStandIn(t, 64)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, make([]byte, 64*PageBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Link(p.target.MemoryFile, link); err != nil {
		t.Skip(err) // another file system
	}
	for what, c := range map[string]struct {
		t    Target
		want string // in the error; empty: opens
	}{
		"as it is":       {p.target, ""},
		"another name":   {Target{p.target.PID, link, 64 * PageBytes}, ""},
		"smaller":        {Target{p.target.PID, link, 40 * PageBytes}, ""},
		"not mapped":     {Target{p.target.PID, other, 64 * PageBytes}, "is not mapped"},
		"larger":         {Target{p.target.PID, link, 65 * PageBytes}, "64 of 65 pages"},
		"uneven":         {Target{p.target.PID, link, 64*PageBytes - 1}, "not a number of pages"},
		"no such pid":    {Target{1 << 22, link, 64 * PageBytes}, "gone"},
		"no such memory": {Target{p.target.PID, other + "x", 64 * PageBytes}, "is not mapped"},
	} {
		m, err := Open(c.t)
		switch {
		case err == nil && c.want != "":
			t.Errorf("%s: opened", what)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
		if err == nil {
			m.Close()
			if err := m.Close(); err != nil {
				t.Errorf("%s: second Close: %v", what, err)
			}
		}
	}
	// Unlinked while mapped.
	if err := os.Remove(p.target.MemoryFile); err != nil {
		t.Fatal(err)
	}
	os.Remove(link)
	m, err := Open(p.target)
	if err != nil {
		t.Fatalf("unlinked: %v", err)
	}
	m.Close()
}

func TestParseMaps(t *testing.T) {
	const maps = `55d0a0000000-55d0a0001000 r--p 00000000 fe:00 17    /usr/bin/vmm
7f0000000000-7f0000002000 rw-p 00001000 fe:00 99    /ram file
7f0000010000-7f0000011000 rw-p 00000000 fe:00 99    /ram file
7f0000020000-7f0000021000 rw-s 00003000 fe:00 99    /ram file
7f0000030000-7f0000031000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0     [vdso]
`
	same := func(m mapping) bool { return m.path == "/ram file" && m.inode == 99 && m.dev == "fe:00" }
	got, err := parseMaps(strings.NewReader(maps), Target{SizeBytes: 3 * PageBytes}, same)
	if err != nil {
		t.Fatal(err)
	}
	want := []region{{0x7f0000010000, 0, 1}, {0x7f0000000000, 1, 2}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
	for what, c := range map[string]struct {
		maps string
		size int64
		want string
	}{
		"shared":   {"1000-2000 rw-s 00000000 fe:00 99 /ram file\n", 1, "mapped shared"},
		"gap":      {"1000-2000 rw-p 00001000 fe:00 99 /ram file\n", 2, "gap or overlap"},
		"twice":    {"1000-2000 rw-p 00000000 fe:00 99 /ram file\n2000-3000 rw-p 00000000 fe:00 99 /ram file\n", 1, "gap or overlap"},
		"nonsense": {"1000 rw-p\n", 1, "unknown line"},
	} {
		if _, err := parseMaps(strings.NewReader(c.maps), Target{SizeBytes: c.size * PageBytes}, same); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}
