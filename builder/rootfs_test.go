package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder/ext4"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

// fileFact is what a test compares of one file.
type fileFact struct {
	Mode     string
	Owner    string
	Links    uint64
	Rdev     string
	Size     int64
	Link     string
	Mtime    string
	Xattrs   string
	HardWith string // first name of the same inode
}

// factsOf walks a directory.
func factsOf(t *testing.T, dir string) map[string]fileFact {
	t.Helper()
	out := map[string]fileFact{}
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		f := fileFact{
			Mode: fmt.Sprintf("%o", st.Mode), Owner: fmt.Sprintf("%d:%d", st.Uid, st.Gid), Links: st.Nlink,
			Mtime: timeOf(st.Mtim).UTC().Format(time.RFC3339Nano),
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.Size = st.Size
		case unix.S_IFLNK:
			if f.Link, err = os.Readlink(p); err != nil {
				return err
			}
		case unix.S_IFCHR, unix.S_IFBLK:
			f.Rdev = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFDIR:
			f.Links = 0 // file systems differ in what they count
		}
		attrs, err := readXattrs(p)
		if err != nil {
			return err
		}
		f.Xattrs = joinAttrs(attrs)
		rel := "/" + strings.TrimPrefix(strings.TrimPrefix(p, dir), "/")
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			f.HardWith = first[st.Ino]
		}
		if rel == "/" {
			f.Mtime = ""
		}
		out[rel] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func joinAttrs(attrs map[string]string) string {
	var list []string
	for k, v := range attrs {
		list = append(list, fmt.Sprintf("%s=%q", k, v))
	}
	sort.Strings(list)
	return strings.Join(list, " ")
}

// factsIn reads the same out of an image, without the kernel.
func factsIn(t *testing.T, image string) map[string]fileFact {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := ext4.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]fileFact{}
	first := map[uint32]string{}
	err = x.Walk(func(p string, i *ext4.Inode) error {
		f := fileFact{
			Mode: fmt.Sprintf("%o", i.Mode), Owner: fmt.Sprintf("%d:%d", i.UID, i.GID), Links: uint64(i.Links),
			Mtime: i.Mtime.UTC().Format(time.RFC3339Nano),
		}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.Size = i.Size
		case unix.S_IFLNK:
			if f.Link, err = x.Readlink(i); err != nil {
				return err
			}
		case unix.S_IFCHR, unix.S_IFBLK:
			f.Rdev = fmt.Sprintf("%d:%d", unix.Major(i.Rdev), unix.Minor(i.Rdev))
		case unix.S_IFDIR:
			f.Links = 0
		}
		attrs, err := x.Xattrs(i)
		if err != nil {
			return err
		}
		text := map[string]string{}
		for k, v := range attrs {
			text[k] = string(v)
		}
		f.Xattrs = joinAttrs(text)
		if !i.IsDir() && i.Links > 1 {
			if first[i.Number] == "" {
				first[i.Number] = p
			}
			f.HardWith = first[i.Number]
		}
		if p == "/" {
			f.Mtime = ""
		}
		out[p] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// readIn reads one file out of an image.
func readIn(t *testing.T, image, name string) string {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := ext4.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	text, found := "", false
	err = x.Walk(func(p string, i *ext4.Inode) error {
		if p != name {
			return nil
		}
		r, err := x.Open(i)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r)
		text, found = string(b), true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Fatalf("%s is not in the image", name)
	}
	return text
}

// tortureTree has one of everything an image may hold.
func tortureTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		check(os.MkdirAll(filepath.Dir(p), 0o755))
		check(os.WriteFile(p, []byte(text), 0o600))
		check(os.Chmod(p, mode))
		return p
	}
	put("bin/suid", "s", 0o755|os.ModeSetuid)
	put("bin/sgid", "s", 0o755|os.ModeSetgid)
	ping := put("bin/ping", "p", 0o755)
	check(unix.Setxattr(ping, "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	owned := put("home/u/file", "mine", 0o640)
	check(os.Chown(owned, 1000, 1001))
	check(os.Chown(filepath.Dir(owned), 100000, 4000000000))
	check(os.Link(owned, filepath.Join(dir, "hard1")))
	check(os.Link(owned, filepath.Join(dir, "bin/hard2")))
	check(os.Symlink("../gone", filepath.Join(dir, "bin/dangling")))
	check(os.Symlink(strings.Repeat("a/", 200), filepath.Join(dir, "longlink")))
	check(os.Lchown(filepath.Join(dir, "longlink"), 7, 8))
	check(os.Mkdir(filepath.Join(dir, "tmp"), 0o777))
	check(os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky))
	check(unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(unix.Mknod(filepath.Join(dir, "disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 1048575))))
	check(unix.Mknod(filepath.Join(dir, "pipe"), unix.S_IFIFO|0o600, 0))
	check(unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o755, 0))
	put(strings.Repeat("long", 63)+"xyz", "255 bytes of name", 0o644)
	put("odd \xfe\n\t name", "not UTF-8", 0o644)
	x := put("xattrs", "x", 0o644)
	check(unix.Setxattr(x, "user.empty", nil, 0))
	check(unix.Setxattr(x, "user.large", bytes.Repeat([]byte("v"), 3000), 0))
	check(unix.Setxattr(x, "trusted.binary", []byte{0, 1, 255}, 0))
	check(unix.Setxattr(filepath.Join(dir, "tmp"), "user.dir", []byte("d"), 0))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	check(err)
	_, err = sparse.WriteAt([]byte("middle"), 5<<30)
	check(err)
	check(sparse.Truncate(10 << 30))
	check(sparse.Close())
	deep := dir
	for range 40 {
		deep = filepath.Join(deep, "deep")
	}
	check(os.MkdirAll(deep, 0o700))
	check(os.WriteFile(filepath.Join(deep, "leaf"), []byte("l"), 0o400))
	for name, at := range map[string]time.Time{
		"bin/suid": time.Date(1969, 12, 31, 23, 59, 59, 5, time.UTC),
		"bin/sgid": time.Date(2040, 1, 1, 0, 0, 0, 987654321, time.UTC),
		"bin/ping": time.Date(2200, 1, 1, 0, 0, 0, 1, time.UTC),
	} {
		check(os.Chtimes(filepath.Join(dir, name), at, at))
	}
	check(os.Chmod(dir, 0o711))
	check(os.Chown(dir, 12, 34))
	return dir
}

func TestRootfsIsExact(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	dir := tortureTree(t)
	image := filepath.Join(t.TempDir(), rootfsFile)
	info, err := makeRootfs(t.Context(), dir, image)
	if err != nil {
		t.Fatal(err)
	}
	fsck(t, image)
	if diff := cmp.Diff(factsOf(t, dir), factsIn(t, image)); diff != "" {
		t.Errorf("image differs from its source (-source +image):\n%s", diff)
	}
	if got := readIn(t, image, "/home/u/file"); got != "mine" {
		t.Errorf("got %q", got)
	}
	st, err := os.Stat(image)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o444 {
		t.Errorf("image has mode %o", st.Mode().Perm())
	}
	// 10 GiB of hole in the tree take no space, in whatever way it is counted.
	if st.Size() > 32<<20 || info.ContentBytes > 1<<20 {
		t.Errorf("image of %d bytes, content of %d", st.Size(), info.ContentBytes)
	}
	t.Run("kernel", func(t *testing.T) {
		mnt := t.TempDir()
		if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,ro", image, mnt).CombinedOutput(); err != nil {
			t.Skipf("no loop mount here: %v %s", err, out)
		}
		defer unix.Unmount(mnt, 0)
		if diff := cmp.Diff(factsOf(t, dir), factsOf(t, mnt)); diff != "" {
			t.Errorf("mounted image differs from its source (-source +image):\n%s", diff)
		}
	})
}

func TestRootfsIsDeterministic(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	dir := tortureTree(t)
	out := t.TempDir()
	first, err := makeRootfs(t.Context(), dir, filepath.Join(out, "a"))
	if err != nil {
		t.Fatal(err)
	}
	// Reading changes times of access, and linking times of change.
	if err := exec.Command("grep", "-rqs", "mine", filepath.Join(dir, "home")).Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "bin/suid"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond)
	second, err := makeRootfs(t.Context(), dir, filepath.Join(out, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if first != second {
		t.Errorf("got %v, then %v", first, second)
	}
	if err := exec.Command("cmp", filepath.Join(out, "a"), filepath.Join(out, "b")).Run(); err != nil {
		t.Errorf("images differ: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/suid"), []byte("t"), 0); err != nil {
		t.Fatal(err)
	}
	third, err := makeRootfs(t.Context(), dir, filepath.Join(out, "c"))
	if err != nil {
		t.Fatal(err)
	}
	if third.Digest == first.Digest {
		t.Error("another content has the same digest")
	}
}

// A tree of 5 GiB of data and one of 300,000 files, when asked for: they take
// minutes.
func TestRootfsLarge(t *testing.T) {
	if os.Getenv("SIETCH_TEST_LARGE") == "" {
		t.Skip("SIETCH_TEST_LARGE is not set")
	}
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), rootfsFile)
	for d := range 300 {
		sub := filepath.Join(dir, fmt.Sprint(d))
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range 1000 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(f)), []byte("small"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := exec.Command("sh", "-c", "head -c 5G /dev/zero | tr '\\0' x > "+filepath.Join(dir, "big")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	start := time.Now()
	info, err := makeRootfs(t.Context(), dir, image)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v for %d inodes, %d bytes", time.Since(start), info.Inodes, info.ContentBytes)
	fsck(t, image)
}

func TestRootfsLeavesNothingOnFailure(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	dir, out := tortureTree(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := makeRootfs(ctx, dir, filepath.Join(out, rootfsFile)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMissingToolHasHint(t *testing.T) {
	_, err := findTool("no-such-tool-of-sietch")
	if !errors.Is(err, ErrMissingTool) {
		t.Errorf("got %v", err)
	}
	var h interface{ Hint() string }
	if !errors.As(err, &h) || !strings.HasPrefix(h.Hint(), "apt-get install") {
		t.Errorf("no hint in %v", err)
	}
}
