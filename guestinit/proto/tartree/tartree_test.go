package tartree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	// testlane is the host's; guestinit imports nothing of it.
	if slices.Contains(strings.Split(os.Getenv("SIETCH_TEST_REQUIRE"), ","), "root") {
		t.Fatal("lane root is required here and missing")
	}
	t.Skip("lane root is missing: not root")
}

// listing is a tree as text, one line a file.
func listing(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if rel == "." {
			return nil
		}
		line := fmt.Sprintf("%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %q", len(b), b[:min(len(b), 32)])
			if bytes.Count(b, []byte{0}) == len(b) && len(b) > 1<<20 {
				line += fmt.Sprintf(" holes:%v", st.Blocks*512 < st.Size/2)
			}
			if first, ok := inodes[st.Ino]; ok {
				line += " same as " + first
			} else if st.Nlink > 1 {
				inodes[st.Ino] = rel
			}
		case unix.S_IFLNK:
			target, _ := os.Readlink(p)
			line += " → " + target
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" %d,%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		line += fmt.Sprintf(" @%d", st.Mtim.Sec)
		for _, name := range []string{"user.note", "security.capability"} {
			v := make([]byte, 256)
			if n, err := unix.Lgetxattr(p, name, v); err == nil {
				line += fmt.Sprintf(" %s=%x", name, v[:n])
			}
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return lines
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// capNetRaw is security.capability as `setcap cap_net_raw+ep` writes it.
var capNetRaw = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// torture makes a tree with everything a file system can have.
func torture(t *testing.T, dir string) {
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		must(t, os.WriteFile(p, []byte(content), 0o600))
		must(t, os.Chmod(p, mode))
		return p
	}
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must(t, os.MkdirAll(filepath.Join(dir, "empty/deep"), 0o755))
	write("plain", "content\n", 0o644)
	write("nothing", "", 0o400)
	write("suid", "x", 0o4755|os.ModeSetuid)
	owned := write("owned", "y", 0o640)
	must(t, os.Chown(owned, 1234, 4321))
	suid := filepath.Join(dir, "suid")
	must(t, unix.Chown(suid, 7, 8))
	must(t, unix.Chmod(suid, 0o6711))
	must(t, unix.Chmod(filepath.Join(dir, "sub"), 0o1777))
	must(t, os.Link(owned, filepath.Join(dir, "sub/hard")))
	must(t, os.Symlink("../plain", filepath.Join(dir, "sub/link")))
	must(t, os.Symlink("/absolute/nowhere", filepath.Join(dir, "dangling")))
	must(t, os.Lchown(filepath.Join(dir, "dangling"), 5, 6))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o620))
	must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(filepath.Join(dir, "loop"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	must(t, unix.Setxattr(owned, "user.note", []byte("a\x00b"), 0))
	capable := write("capable", "z", 0o755)
	must(t, unix.Setxattr(capable, "security.capability", capNetRaw, 0))
	write("name with \n newline", "n", 0o644)
	write("latin-\xe9\xff", "l", 0o644)
	write(strings.Repeat("long", 60), "l", 0o644)
	deep := filepath.Join(dir, strings.Repeat("d123456789/", 30))
	must(t, os.MkdirAll(deep, 0o755))
	must(t, os.WriteFile(filepath.Join(deep, "bottom"), []byte("deep"), 0o644))
	sparse := write("sparse", "", 0o644)
	must(t, os.Truncate(sparse, 64<<20))
	at := time.Unix(1111111111, 0)
	must(t, os.Chtimes(owned, at, at))
	must(t, os.Chtimes(filepath.Join(dir, "empty"), at, at))
	must(t, os.Chtimes(filepath.Join(dir, "sub"), at, at))
}

func pack(t *testing.T, o tartree.PackOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, tartree.Pack(&b, o))
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	needRoot(t)
	src, dst := filepath.Join(t.TempDir(), "src"), t.TempDir()
	must(t, os.Mkdir(src, 0o755))
	torture(t, src)
	archive := pack(t, tartree.PackOptions{Path: src})
	must(t, tartree.Unpack(bytes.NewReader(archive), tartree.UnpackOptions{Path: dst, Trusted: true}))
	if d := cmp.Diff(listing(t, src), listing(t, filepath.Join(dst, "src"))); d != "" {
		t.Error(d)
	}
	// Once more over what is there.
	must(t, tartree.Unpack(bytes.NewReader(archive), tartree.UnpackOptions{Path: dst, Trusted: true}))
	if d := cmp.Diff(listing(t, src), listing(t, filepath.Join(dst, "src"))); d != "" {
		t.Error("second time:", d)
	}
	// GNU tar understands it, too.
	h, err := tar.NewReader(bytes.NewReader(archive)).Next()
	if err != nil || h.Name != "src/" {
		t.Errorf("top entry %+v, %v", h, err)
	}
}

func TestUntrusted(t *testing.T) {
	needRoot(t)
	src, dst := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(src+"/suid", []byte("x"), 0o600))
	must(t, unix.Chmod(src+"/suid", 0o6755))
	must(t, os.WriteFile(src+"/capable", []byte("x"), 0o755))
	must(t, unix.Setxattr(src+"/capable", "security.capability", capNetRaw, 0))
	must(t, unix.Setxattr(src+"/capable", "user.note", []byte("kept"), 0))
	must(t, unix.Mkfifo(src+"/fifo", 0o600))
	o := tartree.UnpackOptions{Path: dst, Rename: true, Contents: true}
	must(t, tartree.Unpack(bytes.NewReader(pack(t, tartree.PackOptions{Path: src})), o))
	for _, line := range listing(t, dst) {
		if strings.Contains(line, "capability") || strings.HasPrefix(line, `"suid"`) && !strings.HasPrefix(line, `"suid" 100755 `) {
			t.Error(line)
		}
		if strings.HasPrefix(line, `"capable"`) && !strings.Contains(line, "user.note") {
			t.Error(line)
		}
	}
	must(t, unix.Mknod(src+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	err := tartree.Unpack(bytes.NewReader(pack(t, tartree.PackOptions{Path: src})), o)
	if !errors.Is(err, tartree.ErrRefused) || !strings.Contains(err.Error(), "/null") {
		t.Errorf("device node: got %v", err)
	}
}

// TestSparseBomb: a short stream must not keep a reader busy with zeroes.
func TestSparseBomb(t *testing.T) {
	src := t.TempDir()
	must(t, os.WriteFile(src+"/f", nil, 0o644))
	must(t, os.Truncate(src+"/f", 1<<42))
	for _, format := range []string{"gnu", "posix"} {
		b, err := exec.Command("tar", "-C", src, "-c", "-S", "-H", format, "f").Output()
		if err != nil {
			t.Skip("tar:", err)
		}
		if err := tartree.Unpack(bytes.NewReader(b), tartree.UnpackOptions{Path: t.TempDir()}); !errors.Is(err, tartree.ErrRefused) {
			t.Errorf("%s: got %v", format, err)
		}
	}
	must(t, os.Truncate(src+"/f", 1<<30))
	b, err := exec.Command("tar", "-C", src, "-c", "-S", "f").Output()
	must(t, err)
	dst := t.TempDir()
	must(t, tartree.Unpack(bytes.NewReader(b), tartree.UnpackOptions{Path: dst, Trusted: true}))
	var st unix.Stat_t
	must(t, unix.Stat(dst+"/f", &st))
	if st.Size != 1<<30 || st.Blocks != 0 {
		t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
	}
}

// entries makes a stream of files ("name=content"), directories ("name/"),
// links ("name->target") and hard links ("name=>target").
func entries(t testing.TB, specs ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, s := range specs {
		h := &tar.Header{Name: s, Mode: 0o755, Uid: os.Getuid(), Gid: os.Getgid(), ModTime: time.Unix(1e9, 0)}
		content := ""
		if name, target, ok := strings.Cut(s, "=>"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeLink, name, target
		} else if name, target, ok := strings.Cut(s, "->"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, name, target
		} else if name, c, ok := strings.Cut(s, "="); ok {
			h.Typeflag, h.Name, h.Size, content = tar.TypeReg, name, int64(len(c)), c
		} else {
			h.Typeflag = tar.TypeDir
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, content)
		must(t, err)
	}
	must(t, w.Close())
	return &b
}

func TestConfinement(t *testing.T) {
	tests := []struct {
		name  string
		tar   []string
		bad   bool   // refused
		there string // file in the destination that is written, with content "x"
	}{
		{"absolute name", []string{"/abs=x"}, false, "abs"},
		{"dots inside", []string{"a/../b=x"}, false, "b"},
		{"leading ./", []string{"./", "./c=x"}, false, "c"},
		{"up", []string{"../out=x"}, true, ""},
		{"up from below", []string{"a/../../out=x"}, true, ""},
		{"absolute and up", []string{"/../out=x"}, true, ""},
		{"link of the stream, up", []string{"l->..", "l/out=x"}, true, ""},
		{"link of the stream, absolute", []string{"l->OUTSIDE", "l/out=x"}, true, ""},
		{"link to a link", []string{"l->OUTSIDE", "m->l", "m/out=x"}, true, ""},
		{"link in two steps", []string{"d/", "d/l->../..", "d/l/out=x"}, true, ""},
		{"link replaced by one", []string{"d/", "d/f=x", "d->OUTSIDE", "d/out=x"}, true, ""},
		{"link inside", []string{"d/", "l->d", "l/f=x"}, false, "d/f"},
		{"file over a link", []string{"l->OUTSIDE/out", "l=x"}, false, "l"},
		{"hard link out", []string{"h=>../outside/secret"}, true, ""},
		{"hard link absolute", []string{"h=>OUTSIDE/secret"}, true, ""},
		{"hard link through a link", []string{"l->OUTSIDE", "h=>l/secret"}, true, ""},
		{"directory over a link", []string{"l->OUTSIDE", "l/"}, true, ""},
	}
	for _, trusted := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, trusted %v", tt.name, trusted), func(t *testing.T) {
				base := t.TempDir()
				dst, outside := base+"/a/dst", base+"/a/outside"
				must(t, os.MkdirAll(dst, 0o755))
				must(t, os.Mkdir(outside, 0o755))
				must(t, os.WriteFile(outside+"/secret", []byte("s"), 0o600))
				specs := make([]string, len(tt.tar))
				for i, s := range tt.tar {
					specs[i] = strings.ReplaceAll(s, "OUTSIDE", outside)
				}
				before := listing(t, outside)
				err := tartree.Unpack(entries(t, specs...), tartree.UnpackOptions{Path: dst, Trusted: trusted})
				if tt.bad != (err != nil) {
					t.Errorf("got %v", err)
				}
				if tt.there != "" {
					if b, err := os.ReadFile(filepath.Join(dst, tt.there)); err != nil || string(b) != "x" {
						t.Errorf("%s: %q, %v", tt.there, b, err)
					}
				}
				if d := cmp.Diff(before, listing(t, outside)); d != "" {
					t.Error("outside changed:", d)
				}
				names, _ := os.ReadDir(base + "/a")
				if len(names) != 2 {
					t.Error("something is beside the destination:", names)
				}
				if fi, _ := os.Stat(outside + "/secret"); fi.Sys() == nil || len(listing(t, outside)) != 1 {
					t.Error("the file outside changed")
				}
			})
		}
	}
}

// TestPresentLinks: links that were in the destination before.
func TestPresentLinks(t *testing.T) {
	setup := func() (dst, outside string) {
		base := t.TempDir()
		dst, outside = base+"/dst", base+"/outside"
		must(t, os.MkdirAll(dst, 0o755))
		must(t, os.Mkdir(outside, 0o755))
		must(t, os.Symlink(outside, dst+"/run"))
		must(t, os.Mkdir(dst+"/usr", 0o755))
		must(t, os.Symlink("usr", dst+"/lib"))
		return dst, outside
	}
	dst, outside := setup()
	must(t, tartree.Unpack(entries(t, "run/", "run/f=x", "lib/", "lib/g=x"), tartree.UnpackOptions{Path: dst, Trusted: true}))
	for _, p := range []string{outside + "/f", dst + "/usr/g"} {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
	if target, _ := os.Readlink(dst + "/lib"); target != "usr" {
		t.Errorf("lib → %q", target)
	}
	dst, outside = setup()
	err := tartree.Unpack(entries(t, "run/f=x"), tartree.UnpackOptions{Path: dst})
	if !errors.Is(err, tartree.ErrUnsafe) {
		t.Errorf("untrusted: got %v", err)
	}
	if l := listing(t, outside); len(l) > 0 {
		t.Error(l)
	}
}

func TestReplace(t *testing.T) {
	tests := []struct {
		name     string
		have     string // as in entries
		tar      []string
		conflict bool
	}{
		{"file by file", "f=old", []string{"f=x"}, false},
		{"file by link", "f=old", []string{"f->g"}, false},
		{"link by file", "f->g", []string{"f=x"}, false},
		{"directory by directory", "f/", []string{"f/", "f/a=x"}, false},
		{"directory by file", "f/", []string{"f=x"}, true},
		{"full directory by file", "f/a=old", []string{"f=x"}, true},
		{"directory by link", "f/", []string{"f->g"}, true},
		{"file by directory", "f=old", []string{"f/"}, true},
		{"parent is a file", "f=old", []string{"f/a=x"}, true},
		{"hard link twice", "f=old", []string{"g=>f", "g=>f"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst := t.TempDir()
			must(t, tartree.Unpack(entries(t, tt.have), tartree.UnpackOptions{Path: dst}))
			before := listing(t, dst)
			err := tartree.Unpack(entries(t, tt.tar...), tartree.UnpackOptions{Path: dst})
			if !tt.conflict {
				must(t, err)
			} else {
				if !errors.Is(err, tartree.ErrConflict) && !errors.Is(err, unix.ENOTDIR) {
					t.Errorf("got %v", err)
				}
				if d := cmp.Diff(before, listing(t, dst)); d != "" {
					t.Error("changed:", d)
				}
			}
			for _, l := range listing(t, dst) {
				if strings.Contains(l, ".sietch-") {
					t.Error("left behind:", l)
				}
			}
		})
	}
}

// TestPlace is the table of docker cp.
func TestPlace(t *testing.T) {
	file, dir := []string{"src=x"}, []string{"src/", "src/in=x"}
	tests := []struct {
		name     string
		tar      []string
		contents bool
		path     string
		parents  bool
		there    string // "" is an error
	}{
		{"file, new name", file, false, "new", false, "new"},
		{"file, new name in a directory", file, false, "dir/new", false, "dir/new"},
		{"file, new/", file, false, "new/", false, ""},
		{"file, no parent", file, false, "no/new", false, ""},
		{"file, no parent, make it", file, false, "no/such/new", true, "no/such/new"},
		{"file, parent is a file", file, false, "file/new", false, ""},
		{"file, over a file", file, false, "file", false, "file"},
		{"file, file/", file, false, "file/", false, ""},
		{"file, directory", file, false, "dir", false, "dir/src"},
		{"file, directory/", file, false, "dir/", false, "dir/src"},
		{"file, link to a file", file, false, "tofile", false, "file"},
		{"file, link to a directory", file, false, "todir", false, "dir/src"},
		{"file, link to nothing", file, false, "tonew", false, "dir/linked"},
		{"file/., directory", file, true, "dir", false, ""},
		{"directory, new name", dir, false, "new", false, "new/in"},
		{"directory, new/", dir, false, "new/", false, "new/in"},
		{"directory, over a file", dir, false, "file", false, ""},
		{"directory, directory", dir, false, "dir", false, "dir/src/in"},
		{"directory, link to a directory", dir, false, "todir", false, "dir/src/in"},
		{"directory/., new name", dir, true, "new", false, "new/in"},
		{"directory/., directory", dir, true, "dir", false, "dir/in"},
		{"directory/., over a file", dir, true, "file", false, ""},
		{"two sources, new name", []string{"a=x", "b=x"}, false, "new", false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			must(t, os.Mkdir(base+"/dir", 0o700))
			must(t, os.WriteFile(base+"/file", []byte("old"), 0o644))
			must(t, os.Symlink("file", base+"/tofile"))
			must(t, os.Symlink(base+"/dir", base+"/todir"))
			must(t, os.Symlink("dir/linked", base+"/tonew"))
			err := tartree.Unpack(entries(t, tt.tar...), tartree.UnpackOptions{
				Path: base + "/" + tt.path, Rename: true, Contents: tt.contents, Parents: tt.parents,
			})
			if tt.there == "" {
				if err == nil {
					t.Error("no error")
				}
				if b, _ := os.ReadFile(base + "/file"); string(b) != "old" {
					t.Errorf("file is %q", b)
				}
				return
			}
			must(t, err)
			if b, err := os.ReadFile(base + "/" + tt.there); err != nil || string(b) != "x" {
				t.Errorf("%s: %q, %v", tt.there, b, err)
			}
			if fi, _ := os.Stat(base + "/dir"); fi.Mode().Perm() != 0o700 {
				t.Errorf("mode of the destination became %v", fi.Mode())
			}
		})
	}
}

func TestPackLinks(t *testing.T) {
	base := t.TempDir()
	must(t, os.Mkdir(base+"/dir", 0o755))
	must(t, os.WriteFile(base+"/dir/in", nil, 0o644))
	must(t, os.Symlink("dir", base+"/link"))
	tests := []struct {
		path   string
		follow bool
		want   string // names of the stream
	}{
		{"/dir", false, "dir/ dir/in"},
		{"/dir/.", false, "dir/ dir/in"},
		{"/link", false, "link"},
		{"/link", true, "link/ link/in"},
		{"/link/", false, "link/ link/in"},
		{"/link/.", false, "link/ link/in"},
		{"/dir/in/", false, "not a directory"},
		{"/none", false, "no such file"},
		{"/none", true, "no such file"},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		err := tartree.Pack(&b, tartree.PackOptions{Path: base + tt.path, FollowLink: tt.follow})
		var names []string
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			names = append(names, h.Name)
		}
		if got := strings.Join(names, " "); err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, follow %v: got %q, %v; want %q", tt.path, tt.follow, got, err, tt.want)
		}
	}
}

func TestPackSkipsKernelFiles(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	must(t, os.MkdirAll(base+"/root/proc", 0o755))
	must(t, os.WriteFile(base+"/root/f", nil, 0o644))
	must(t, unix.Mount("proc", base+"/root/proc", "proc", 0, ""))
	defer unix.Unmount(base+"/root/proc", unix.MNT_DETACH)
	r := tar.NewReader(bytes.NewReader(pack(t, tartree.PackOptions{Path: base + "/root"})))
	var names []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		names = append(names, h.Name)
	}
	sort.Strings(names)
	if d := cmp.Diff([]string{"root/", "root/f", "root/proc/"}, names); d != "" {
		t.Error(d)
	}
}

func TestNoSpace(t *testing.T) {
	needRoot(t)
	dst := t.TempDir()
	must(t, unix.Mount("tmpfs", dst, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(dst, unix.MNT_DETACH)
	err := tartree.Unpack(entries(t, "small=x", "big="+strings.Repeat("y", 4<<20)), tartree.UnpackOptions{Path: dst})
	if !errors.Is(err, unix.ENOSPC) || err.Error() != "unpack big: no space left on device" {
		t.Errorf("got %v", err)
	}
	if l := listing(t, dst); len(l) != 1 || !strings.HasPrefix(l[0], `"small"`) {
		t.Error(l)
	}
}

func TestDamaged(t *testing.T) {
	whole, err := io.ReadAll(entries(t, "a=x", "b="+strings.Repeat("y", 2000)))
	must(t, err)
	for _, n := range []int{100, 1100, 1536, 2500} {
		err := tartree.Unpack(bytes.NewReader(whole[:n]), tartree.UnpackOptions{Path: t.TempDir()})
		if !errors.Is(err, tartree.ErrArchive) {
			t.Errorf("cut at %d: got %v", n, err)
		}
	}
	if err := tartree.Unpack(strings.NewReader(strings.Repeat("no tar ", 1000)), tartree.UnpackOptions{Path: t.TempDir()}); !errors.Is(err, tartree.ErrArchive) {
		t.Errorf("got %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, specs := range [][]string{{"a=x", "b/", "b/c=y"}, {"l->..", "l/x=y"}, {"a=x", "h=>a"}, {"../x=y"}} {
		b, _ := io.ReadAll(entries(f, specs...))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		base := t.TempDir()
		must(t, os.Mkdir(base+"/dst", 0o755))
		tartree.Unpack(bytes.NewReader(b), tartree.UnpackOptions{Path: base + "/dst"})
		if names, _ := os.ReadDir(base); len(names) != 1 {
			t.Errorf("beside the destination: %v", names)
		}
	})
}

// Files whose content the kernel makes up have a size that says nothing.
func TestPackKernelFiles(t *testing.T) {
	for _, path := range []string{"/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Logf("not on this host: %v", err)
			continue
		}
		r := tar.NewReader(bytes.NewReader(pack(t, tartree.PackOptions{Path: path})))
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is packed as %q, want %q", path, got, want)
		}
	}
}

func TestTemporary(t *testing.T) {
	for name, want := range map[string]bool{
		".sietch-3w5e11264sgsf-1": true, ".sietch-0-12": true,
		"": false, ".sietch-": false, ".sietch-config": false, ".sietch-a-": false, ".sietch-a-b": false, "x.sietch-a-1": false,
	} {
		if got := tartree.Temporary(name); got != want {
			t.Errorf("%q: got %t, want %t", name, got, want)
		}
	}
}
