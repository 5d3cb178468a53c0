package hosttar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(name, mode); err != nil {
		t.Fatal(err)
	}
}

func owner(t *testing.T, name string) (uid, gid int) {
	t.Helper()
	st, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// entries lists a stream: "name type link content".
func entries(t *testing.T, r io.Reader) []string {
	t.Helper()
	var all []string
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uname != "" || h.Gname != "" {
			t.Errorf("%s names its owner: %q %q", h.Name, h.Uname, h.Gname)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimRight(strings.Join([]string{h.Name, string(h.Typeflag), h.Linkname, string(data)}, " "), " "))
	}
}

func source(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "src")
	mkdir(t, dir, 0o755)
	mkdir(t, filepath.Join(dir, "d"), 0o755)
	write(t, filepath.Join(dir, "d", "one"), "1")
	if err := os.Link(filepath.Join(dir, "d", "one"), filepath.Join(dir, "two")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPack(t *testing.T) {
	dir := source(t)
	link := filepath.Join(filepath.Dir(dir), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	whole := []string{"t/ 5", "t/d/ 5", "t/d/one 0  1", "t/l 2 d", "t/two 1 t/d/one"}
	tests := []struct {
		name, source string
		options      PackOptions
		want         []string
	}{
		{"a directory under another name", dir, PackOptions{Top: "t"}, whole},
		{"its content", dir, PackOptions{Top: "."}, []string{"d/ 5", "d/one 0  1", "l 2 d", "two 1 d/one"}},
		{"a file", filepath.Join(dir, "two"), PackOptions{Top: "x"}, []string{"x 0  1"}},
		{"a link", link, PackOptions{Top: "t"}, []string{"t 2 " + dir}},
		{"what a link leads to", link, PackOptions{Top: "t", Follow: true}, whole},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			if _, err := Pack(t.Context(), &b, tt.source, tt.options); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, entries(t, &b)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPackLeavesSocketsOut(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var b bytes.Buffer
	var remarks []string
	if _, err := Pack(t.Context(), &b, dir, PackOptions{Top: "s", Remark: func(s string) { remarks = append(remarks, s) }}); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, &b); len(got) != 1 || len(remarks) != 1 {
		t.Errorf("entries %q, remarks %q", got, remarks)
	}
}

func TestPackEndsWithItsContext(t *testing.T) {
	ctx, cancel := contextOf(t)
	cancel()
	if _, err := Pack(ctx, io.Discard, source(t), PackOptions{Top: "s"}); !errors.Is(err, ctx.Err()) {
		t.Errorf("got error %v, want %v", err, ctx.Err())
	}
}

func TestRename(t *testing.T) {
	in := func() io.Reader {
		return stream(t, entry{name: "a/"}, entry{name: "a/f", body: "1"}, entry{name: "a/h", typ: tar.TypeLink, link: "a/f"}, entry{name: "a/s", typ: tar.TypeSymlink, link: "../a/f"})
	}
	tests := []struct {
		top  string
		want []string
	}{
		{"b", []string{"b/ 5", "b/f 0  1", "b/h 1 b/f", "b/s 2 ../a/f"}},
		{".", []string{"f 0  1", "h 1 f", "s 2 ../a/f"}},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		if _, err := Rename(t.Context(), &b, in(), "a", tt.top); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, entries(t, &b)); diff != "" {
			t.Errorf("top %s (-want +got):\n%s", tt.top, diff)
		}
	}
	if _, err := Rename(t.Context(), io.Discard, stream(t, entry{name: "../a"}), "a", "b"); !errors.Is(err, ErrEscape) {
		t.Errorf("got error %v, want %v", err, ErrEscape)
	}
}

func TestRenameKeepsLongNamesAndAttributes(t *testing.T) {
	long := strings.Repeat("n", 200)
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	if err := w.WriteHeader(&tar.Header{Name: "a/" + long, Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 3000000, PAXRecords: map[string]string{"SCHILY.xattr.user.k": "v"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Rename(t.Context(), &out, &in, "a", strings.Repeat("t", 120)); err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(&out).Next()
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != strings.Repeat("t", 120)+"/"+long || h.Uid != 3000000 || h.Mode != 0o4755 || h.PAXRecords["SCHILY.xattr.user.k"] != "v" {
		t.Errorf("got %+v", h)
	}
}

func TestBeneath(t *testing.T) {
	tests := []struct{ base, entry, want string }{
		{"a", "a", "."}, {"a", "a/", "."}, {"a", "./a/b", "b"}, {"a", "a//b/./c", "b/c"},
		{"", "etc/passwd", "etc/passwd"}, {"", "./", "."}, {"", "./x", "x"},
		{"a", "b", ""}, {"a", "ab", ""}, {"a", "..", ""}, {"a", "a/..", ""}, {"a", "/a", ""},
		{"", "/etc", ""}, {"", "../x", ""}, {"", "", ""}, {"a", "a/b/../c", ""},
	}
	for _, tt := range tests {
		got, err := beneath(tt.base, tt.entry)
		if got != tt.want || (tt.want == "") != errors.Is(err, ErrEscape) {
			t.Errorf("beneath(%q, %q) = %q, %v; want %q", tt.base, tt.entry, got, err, tt.want)
		}
	}
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}
