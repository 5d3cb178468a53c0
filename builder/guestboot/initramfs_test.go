package guestboot

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
)

// member of an archive, as another implementation reads it.
type member struct {
	Name string
	Mode int64
	Body string
}

func readArchive(t *testing.T, b []byte) (members []member, rest []byte) {
	t.Helper()
	in := bytes.NewReader(b)
	r := cpio.NewReader(in)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, member{h.Name, int64(h.Mode), string(body)})
	}
	rest, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	return members, rest
}

func TestInitramfs(t *testing.T) {
	mods := map[string][]byte{
		"virtio":     kernelObject("depends="),
		"virtio_blk": kernelObject("depends=virtio", "alias=virtio:d00000002v*"),
		"tun":        kernelObject("alias=char-major-10-200"),
	}
	var b, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&b, &again} {
		if err := writeInitramfs(w, []byte("\x7fELF init"), mods); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Error("the same input gave another archive")
	}
	members, rest := readArchive(t, b.Bytes())
	if len(bytes.Trim(rest, "\x00")) != 0 {
		t.Errorf("%d bytes behind the archive", len(rest))
	}
	for i, m := range members {
		if m.Name == "modules/tun.ko.gz" {
			z, err := gzip.NewReader(bytes.NewReader([]byte(m.Body)))
			if err != nil {
				t.Fatal(err)
			}
			ko, err := io.ReadAll(z)
			if err != nil || !bytes.Equal(ko, mods["tun"]) {
				t.Errorf("tun: got %d bytes, %v", len(ko), err)
			}
			members[i].Body = "packed"
		}
	}
	want := []member{
		{"dev", 0o40755, ""},
		{"proc", 0o40755, ""},
		{"sys", 0o40755, ""},
		{"modules", 0o40755, ""},
		{"dev/console", 0o20600, ""},
		{"init", 0o100755, "\x7fELF init"},
		{"modules/index", 0o100644, "module tun\nalias char-major-10-200\nmodule virtio\nmodule virtio_blk virtio\nalias virtio:d00000002v*\n"},
		{"modules/tun.ko.gz", 0o100644, "packed"},
		{"modules/virtio.ko", 0o100644, string(mods["virtio"])},
		{"modules/virtio_blk.ko", 0o100644, string(mods["virtio_blk"])},
	}
	if d := cmp.Diff(want, members); d != "" {
		t.Error(d)
	}
	// The reader above does not know device numbers: 5 and 1, in hexadecimal,
	// after the two of the device the file is on.
	at := bytes.Index(b.Bytes(), []byte("dev/console"))
	if got := string(b.Bytes()[at-110+78 : at-110+94]); got != "0000000500000001" {
		t.Errorf("device number of the console is %s", got)
	}
}

func TestWithConfig(t *testing.T) {
	dir := t.TempDir()
	var base bytes.Buffer
	if err := writeInitramfs(&base, []byte("init"), nil); err != nil {
		t.Fatal(err)
	}
	// Whatever the length of the base is, the second archive starts aligned.
	for extra := range 4 {
		file, dst := filepath.Join(dir, "base"), filepath.Join(dir, "dst")
		if err := os.WriteFile(file, append(bytes.Clone(base.Bytes()), make([]byte, extra)...), 0o600); err != nil {
			t.Fatal(err)
		}
		const config = `{"version":1,"env":["SECRET=1"]}`
		if err := WithConfig(file, dst, []byte(config)); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(dst)
		if err != nil || fi.Mode() != 0o600 {
			t.Fatalf("mode %v, %v", fi.Mode(), err)
		}
		got, err := os.ReadFile(dst)
		if err != nil {
			t.Fatal(err)
		}
		second := (base.Len() + extra + 3) &^ 3
		members, _ := readArchive(t, got[second:])
		want := []member{{"sietch", 0o40700, ""}, {"sietch/config.json", 0o100600, config}}
		if d := cmp.Diff(want, members); d != "" {
			t.Error(d)
		}
	}
	if err := WithConfig(filepath.Join(dir, "none"), filepath.Join(dir, "x"), nil); err == nil {
		t.Error("no error without a base")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}
