package hosttar

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// entry of a test stream. A name with a trailing slash is a directory.
type entry struct {
	name string
	typ  byte
	link string
	mode int64
	body string
}

func stream(t *testing.T, entries ...entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.typ, Linkname: e.link, Mode: e.mode, Size: int64(len(e.body)), ModTime: time.Unix(1700000000, 0), Uid: os.Getuid(), Gid: os.Getgid()}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(e.name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// tree lists what is beneath a directory: "name mode content".
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := rel + " " + info.Mode().String()
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			line += " -> " + target
		case d.Type().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// outside is a directory beside the destination whose content must not change.
func outside(t *testing.T) (dst, beside string) {
	t.Helper()
	base := t.TempDir()
	beside = filepath.Join(base, "beside")
	if err := os.MkdirAll(beside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(beside, "secret"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "dst"), beside
}

func TestTree(t *testing.T) {
	dst, _ := outside(t)
	stats, err := Tree(t.Context(), stream(t,
		entry{name: "src/", mode: 0o750},
		entry{name: "src/ro/", mode: 0o555},
		entry{name: "src/ro/file", mode: 0o400, body: "x"},
		entry{name: "./src/deep/er/file", body: "no entry of its own for deep"},
		entry{name: "src/link", typ: tar.TypeSymlink, link: "/etc/passwd"},
		entry{name: "src/hard", typ: tar.TypeLink, link: "src/ro/file"},
		entry{name: "src/run", mode: 0o755, body: "#!"},
	), dst, UnpackOptions{Base: "src"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		". drwxr-x---",
		"deep drwxr-xr-x",
		"deep/er drwxr-xr-x",
		"deep/er/file -rw-r--r-- no entry of its own for deep",
		"hard -r-------- x",
		"link Lrwxrwxrwx -> /etc/passwd",
		"ro dr-xr-xr-x",
		"ro/file -r-------- x",
		"run -rwxr-xr-x #!",
	}
	if diff := cmp.Diff(want, tree(t, dst)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := (Stats{Files: 7, Bytes: 31}); stats != want {
		t.Errorf("got %+v, want %+v", stats, want)
	}
	st, err := os.Stat(filepath.Join(dst, "ro"))
	if err != nil || st.ModTime().Unix() != 1700000000 {
		t.Errorf("time of a directory: %v, %v", st.ModTime(), err)
	}
}

// TestRootDirectory is a copy of "/", which has no name of its own.
func TestRootDirectory(t *testing.T) {
	for _, name := range []string{"rootfs/", "./"} {
		dst, _ := outside(t)
		entries := []entry{{name: name, mode: 0o755}, {name: name + "etc/"}, {name: name + "etc/f", body: "x"}, {name: name + "h", typ: tar.TypeLink, link: name + "etc/f"}}
		if _, err := Tree(t.Context(), stream(t, entries...), dst, UnpackOptions{KeepTop: true}); err != nil {
			t.Errorf("top %q: %v", name, err)
		}
		if data, err := os.ReadFile(filepath.Join(dst, "h")); err != nil || string(data) != "x" {
			t.Errorf("top %q: %q, %v", name, data, err)
		}
	}
	dst, _ := outside(t)
	if _, err := Tree(t.Context(), stream(t, entry{name: "rootfs/"}, entry{name: "other", body: "x"}), dst, UnpackOptions{}); !errors.Is(err, ErrEscape) {
		t.Errorf("got error %v, want %v", err, ErrEscape)
	}
}

func TestTreeKeepsWhatIsThere(t *testing.T) {
	dst, _ := outside(t)
	mkdir(t, dst, 0o700)
	write(t, filepath.Join(dst, "old"), "old")
	write(t, filepath.Join(dst, "file"), "before")
	// A second name of the file that is replaced must keep the old content.
	if err := os.Link(filepath.Join(dst, "file"), filepath.Join(dst, "other-name")); err != nil {
		t.Fatal(err)
	}
	_, err := Tree(t.Context(), stream(t, entry{name: "s/", mode: 0o777}, entry{name: "s/file", body: "after"}), dst, UnpackOptions{Base: "s", KeepTop: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{". drwx------", "file -rw-r--r-- after", "old -rw-r--r-- old", "other-name -rw-r--r-- before"}
	if diff := cmp.Diff(want, tree(t, dst)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestConfinement is the hostile guest: whatever it sends, what is beside the
// destination stays as it is.
func TestConfinement(t *testing.T) {
	tests := []struct {
		name    string
		entries []entry
		escape  bool // must be ErrEscape
	}{
		{"parent", []entry{{name: "src/"}, {name: "src/../../beside/secret", body: "evil"}}, true},
		{"parent that cleaning hides", []entry{{name: "src/"}, {name: "src/a/../b", body: "evil"}}, true},
		{"absolute", []entry{{name: "/BESIDE/secret", body: "evil"}}, true},
		{"another top entry", []entry{{name: "src/"}, {name: "other", body: "evil"}}, true},
		{"a name that only begins alike", []entry{{name: "src2/secret", body: "evil"}}, true},
		{"empty name", []entry{{name: "", body: "evil"}}, true},
		{"the top is a file", []entry{{name: "src", body: "evil"}}, true},
		{"the top is a link", []entry{{name: "src", typ: tar.TypeSymlink, link: "BESIDE"}, {name: "src/secret", body: "evil"}}, true},
		{"through an absolute link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "BESIDE"}, {name: "src/l/secret", body: "evil"}}, false},
		{"through a relative link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside"}, {name: "src/l/secret", body: "evil"}}, false},
		{"through a chain of links", []entry{{name: "src/"}, {name: "src/a", typ: tar.TypeSymlink, link: "."}, {name: "src/b", typ: tar.TypeSymlink, link: "a/../../beside"}, {name: "src/b/secret", body: "evil"}}, false},
		{"new directory behind a link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside"}, {name: "src/l/new/"}, {name: "src/l/new/file", body: "evil"}}, false},
		{"over a link to a file", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside/secret"}, {name: "src/l", body: "evil"}}, false},
		{"over a dangling link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside/new"}, {name: "src/l", body: "evil"}}, false},
		{"directory over a link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside"}, {name: "src/l/", mode: 0o777}, {name: "src/l/secret", body: "evil"}}, false},
		{"mode of a directory that became a link", []entry{{name: "src/"}, {name: "src/d/", mode: 0o777}, {name: "src/d", typ: tar.TypeSymlink, link: "../beside"}}, false},
		{"hard link to a file outside", []entry{{name: "src/"}, {name: "src/h", typ: tar.TypeLink, link: "../beside/secret"}, {name: "src/h", body: "evil"}}, true},
		{"hard link to an absolute path", []entry{{name: "src/"}, {name: "src/h", typ: tar.TypeLink, link: "BESIDE/secret"}}, true},
		{"hard link through a link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside"}, {name: "src/h", typ: tar.TypeLink, link: "src/l/secret"}, {name: "src/h", mode: 0o777, body: "evil"}}, false},
		{"hard link to a link", []entry{{name: "src/"}, {name: "src/l", typ: tar.TypeSymlink, link: "../beside/secret"}, {name: "src/h", typ: tar.TypeLink, link: "src/l"}, {name: "src/h", body: "evil"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst, beside := outside(t)
			before := tree(t, beside)
			for i := range tt.entries {
				tt.entries[i].name = strings.ReplaceAll(tt.entries[i].name, "/BESIDE", beside)
				tt.entries[i].link = strings.ReplaceAll(tt.entries[i].link, "BESIDE", beside)
			}
			_, err := Tree(t.Context(), stream(t, tt.entries...), dst, UnpackOptions{Base: "src"})
			if tt.escape && !errors.Is(err, ErrEscape) {
				t.Errorf("got error %v, want %v", err, ErrEscape)
			}
			if diff := cmp.Diff(before, tree(t, beside)); diff != "" {
				t.Errorf("changed outside (-before +after):\n%s", diff)
			}
			if entries, err := os.ReadDir(filepath.Dir(dst)); err != nil || len(entries) > 2 {
				t.Errorf("more than the destination was made: %v, %v", entries, err)
			}
		})
	}
}

func TestFile(t *testing.T) {
	dst, beside := outside(t)
	mkdir(t, dst, 0o755)
	secret := filepath.Join(beside, "secret")
	if err := os.Symlink(secret, filepath.Join(dst, "planted")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dst, "old"), "old")
	mkdir(t, filepath.Join(dst, "dir"), 0o755)

	tests := []struct {
		name, as string
		entries  []entry
		wantErr  string
	}{
		{"new", "new", []entry{{name: "f", body: "1", mode: 0o640}}, ""},
		{"in place of a file", "old", []entry{{name: "f", body: "2"}}, ""},
		{"in place of a link, not through it", "planted", []entry{{name: "f", body: "3"}}, ""},
		{"a link", "sym", []entry{{name: "f", typ: tar.TypeSymlink, link: "new"}}, ""},
		{"over a directory", "dir", []entry{{name: "f", body: "4"}}, "a directory of that name is there"},
		{"a directory instead", "d", []entry{{name: "f/"}}, ErrEscape.Error()},
		{"one more", "one", []entry{{name: "f", body: "5"}, {name: "f/x", body: "evil"}}, ErrEscape.Error()},
		{"nothing", "none", nil, "the guest sent nothing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := File(t.Context(), stream(t, tt.entries...), dst, tt.as, UnpackOptions{Base: "f"})
			if got := errText(err); tt.wantErr == "" && err != nil || !strings.Contains(got, tt.wantErr) {
				t.Errorf("got error %q, want %q", got, tt.wantErr)
			}
		})
	}
	want := []string{
		". drwxr-xr-x", "dir drwxr-xr-x", "new -rw-r----- 1", "old -rw-r--r-- 2", "one -rw-r--r-- 5",
		"planted -rw-r--r-- 3", "sym Lrwxrwxrwx -> new",
	}
	if diff := cmp.Diff(want, tree(t, dst)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "mine" {
		t.Errorf("the file outside: %q, %v", data, err)
	}
}

// TestFileAppearsWhole cuts the stream off: the old file must still be there,
// and nothing else.
func TestFileAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "old")
	whole := stream(t, entry{name: "f", body: strings.Repeat("x", 4096)}).Bytes()
	if _, err := File(t.Context(), bytes.NewReader(whole[:2000]), dir, "f", UnpackOptions{Base: "f"}); err == nil {
		t.Fatal("a stream that was cut off was taken for whole")
	}
	if diff := cmp.Diff([]string{"f -rw-r--r-- old"}, tree(t, dir)[1:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoSpecialFiles(t *testing.T) {
	dst, _ := outside(t)
	var remarks []string
	_, err := Tree(t.Context(), stream(t,
		entry{name: "s/", mode: 0o2775},
		entry{name: "s/suid", mode: 0o4755, body: "#!"},
		entry{name: "s/sgid", mode: 0o2755, body: "#!"},
		entry{name: "s/mem", typ: tar.TypeChar, mode: 0o666},
		entry{name: "s/disk", typ: tar.TypeBlock, mode: 0o666},
		entry{name: "s/pipe", typ: tar.TypeFifo},
		entry{name: "s/tmp/", mode: 0o1777},
	), dst, UnpackOptions{Base: "s", Remark: func(s string) { remarks = append(remarks, s) }})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{". dgrwxrwxr-x", "sgid -rwxr-xr-x #!", "suid -rwxr-xr-x #!", "tmp dtrwxrwxrwx"}
	if diff := cmp.Diff(want, tree(t, dst)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(remarks) != 5 {
		t.Errorf("remarks: %q", remarks)
	}
}

func TestConflictsAreErrors(t *testing.T) {
	dst, _ := outside(t)
	mkdir(t, dst, 0o755)
	mkdir(t, filepath.Join(dst, "dir"), 0o755)
	write(t, filepath.Join(dst, "file"), "old")
	for _, e := range []entry{{name: "s/dir", body: "x"}, {name: "s/file/"}} {
		if _, err := Tree(t.Context(), stream(t, e), dst, UnpackOptions{Base: "s", KeepTop: true}); err == nil {
			t.Errorf("%s replaced the other kind of thing", e.name)
		}
	}
	if _, err := Tree(t.Context(), stream(t, entry{name: "s/"}), filepath.Join(dst, "file"), UnpackOptions{Base: "s"}); err == nil {
		t.Error("a directory replaced a file")
	}
}

func TestOwnersAreKept(t *testing.T) {
	testlane.Need(t, testlane.Root)
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "dst")
	write(t, filepath.Join(src, "f"), "x")
	if err := os.Symlink("f", filepath.Join(src, "l")); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{".", "f", "l"} {
		if err := os.Lchown(filepath.Join(src, name), 4000+i, 5000+i); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if _, err := Pack(t.Context(), &b, src, PackOptions{Top: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Tree(t.Context(), &b, dst, UnpackOptions{Base: "s"}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{".", "f", "l"} {
		uid, gid := owner(t, filepath.Join(dst, name))
		if uid != 4000+i || gid != 5000+i {
			t.Errorf("%s belongs to %d:%d, want %d:%d", name, uid, gid, 4000+i, 5000+i)
		}
	}
}

// TestHoles: zeroes become holes, at the end too, and the bytes stay the same.
func TestHoles(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "dst")
	body := string(make([]byte, 1<<20)) + "middle" + string(make([]byte, 2<<20))
	write(t, filepath.Join(src, "f"), body)
	var b bytes.Buffer
	if _, err := Pack(t.Context(), &b, src, PackOptions{Top: "s"}); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	if _, err := Tree(t.Context(), bytes.NewReader(whole), dst, UnpackOptions{Base: "s"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dst, "f"))
	if err != nil || string(got) != body {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	st, err := os.Stat(filepath.Join(dst, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > 256<<10 {
		t.Errorf("%d bytes on disk", used)
	}
	if _, err := Tree(t.Context(), bytes.NewReader(whole[:2<<20]), t.TempDir(), UnpackOptions{Base: "s"}); err == nil {
		t.Error("a stream that was cut off is no error")
	}
}
