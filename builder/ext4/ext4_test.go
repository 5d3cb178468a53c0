package ext4

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// mkfs makes an image of the tree at dir, as the builder does.
func mkfs(t testing.TB, dir string, size int64, extra ...string) string {
	t.Helper()
	tool, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		if tool = "/usr/sbin/mkfs.ext4"; !exists(tool) {
			t.Skip("no mkfs.ext4")
		}
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-q", "-F", "-b", "4096", "-I", "256", "-O", "^has_journal,^resize_inode", "-E", "lazy_journal_init=1"}, extra...)
	if dir != "" {
		args = append(args, "-d", dir)
	}
	if out, err := exec.Command(tool, append(args, image)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return image
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

func open(t testing.TB, image string) (*FS, *os.File) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	x, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return x, f
}

func fsck(t testing.TB, image string) {
	t.Helper()
	if out, err := exec.Command("/usr/sbin/e2fsck", "-fn", image).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
}

// sampleTree has one of every kind of file that this user may make.
func sampleTree(t testing.TB) string {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o640); err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	random := make([]byte, 3<<20+17)
	r := rand.New(rand.NewPCG(1, 2))
	for k := range random {
		random[k] = byte(r.Uint32())
	}
	write("empty", nil)
	write("one", []byte("x"))
	big := write("d/e/big", random)
	check(os.Link(big, filepath.Join(dir, "hard")))
	check(os.Symlink("short", filepath.Join(dir, "link")))
	check(os.Symlink(strings.Repeat("long/", 60), filepath.Join(dir, "longlink")))
	check(os.Symlink(strings.Repeat("x", 59), filepath.Join(dir, "link59")))
	check(os.Symlink(strings.Repeat("x", 60), filepath.Join(dir, "link60")))
	write(strings.Repeat("n", 255), []byte("long name"))
	write("bytes \xff\n\x01", []byte("odd name"))
	check(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	check(os.Chmod(filepath.Join(dir, "d"), 0o1777|os.ModeSticky))
	for k := range 500 {
		write(fmt.Sprintf("many/file-%d-%s", k, strings.Repeat("p", k%60)), nil)
	}
	// A thousand extents: the map does not fit into the inode.
	holes, err := os.Create(filepath.Join(dir, "holes"))
	check(err)
	for k := range int64(1000) {
		_, err := holes.WriteAt([]byte{byte(k), 1}, k*3*4096+k%4096)
		check(err)
	}
	check(holes.Truncate(20 << 20))
	check(holes.Close())
	check(os.WriteFile(filepath.Join(dir, "attrs"), []byte("a"), 0o600))
	for name, value := range map[string]string{"user.small": "v", "user.large": strings.Repeat("w", 2000), "user.empty": ""} {
		if err := unix.Setxattr(filepath.Join(dir, "attrs"), name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		check(unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		check(unix.Mknod(filepath.Join(dir, "bigdev"), unix.S_IFBLK|0o600, int(unix.Mkdev(259, 70000))))
		check(os.Chown(big, 1234567, 7654321))
		check(unix.Setxattr(big, "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	}
	return dir
}

// sameAsSource compares every file of an image with the tree it was made of.
func sameAsSource(t *testing.T, x *FS, dir string) {
	t.Helper()
	seen := map[string]bool{}
	err := x.Walk(func(p string, i *Inode) error {
		if p == "/lost+found" {
			return nil
		}
		seen[p] = true
		src := filepath.Join(dir, p)
		var st unix.Stat_t
		if err := unix.Lstat(src, &st); err != nil {
			t.Errorf("%q is not in the source: %v", p, err)
			return nil
		}
		if p == "/" {
			return nil
		}
		if i.Mode != st.Mode || i.UID != st.Uid || i.GID != st.Gid || uint64(i.Links) != st.Nlink || i.Rdev != st.Rdev && st.Mode&unix.S_IFMT != unix.S_IFREG {
			t.Errorf("%q: got mode %o uid %d gid %d links %d rdev %x, want %o %d %d %d %x", p, i.Mode, i.UID, i.GID, i.Links, i.Rdev, st.Mode, st.Uid, st.Gid, st.Nlink, st.Rdev)
		}
		if !i.IsDir() && i.Mode&unix.S_IFMT != unix.S_IFBLK && i.Mode&unix.S_IFMT != unix.S_IFCHR && i.Size != st.Size {
			t.Errorf("%q: got %d bytes, want %d", p, i.Size, st.Size)
		}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			r, err := x.Open(i)
			if err != nil {
				return err
			}
			got, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			want, err := os.ReadFile(src)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%q: content differs", p)
			}
		case unix.S_IFLNK:
			got, err := x.Readlink(i)
			if err != nil {
				return err
			}
			if want, _ := os.Readlink(src); got != want {
				t.Errorf("%q: link to %q, want %q", p, got, want)
			}
		}
		sameAttrs(t, x, i, src)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if rel := "/" + strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"); !seen[rel] {
			t.Errorf("%q is not in the image", rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sameAttrs(t *testing.T, x *FS, i *Inode, src string) {
	t.Helper()
	got, err := x.Xattrs(i)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(src, buf)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		if name == "" {
			continue
		}
		count++
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(src, name, value)
		if err != nil {
			t.Fatal(err)
		}
		if g, ok := got[name]; !ok || !bytes.Equal(g, value[:n]) {
			t.Errorf("%s: attribute %s is %q, want %q", src, name, g, value[:n])
		}
	}
	if count != len(got) {
		t.Errorf("%s: got attributes %v, want %d", src, got, count)
	}
}

func TestReadsWhatMkfsWrote(t *testing.T) {
	dir := sampleTree(t)
	image := mkfs(t, dir, 64<<20)
	x, _ := open(t, image)
	sameAsSource(t, x, dir)
}

func mountImage(t *testing.T, image, options string) string {
	t.Helper()
	testlane.Need(t, testlane.Root)
	mnt := t.TempDir()
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,"+options, image, mnt).CombinedOutput(); err != nil {
		t.Skipf("no loop mount here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return mnt
}

// The kernel writes what mkfs does not: hash-indexed directories, access control
// lists, fragmented and preallocated files.
func TestReadsWhatTheKernelWrote(t *testing.T) {
	image := mkfs(t, "", 64<<20)
	src := sampleTree(t)
	t.Run("write", func(t *testing.T) {
		mnt := mountImage(t, image, "rw")
		if out, err := exec.Command("cp", "-a", src+"/.", mnt).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v %s", err, out)
		}
		for k := range 3000 {
			if err := os.WriteFile(filepath.Join(mnt, "many", fmt.Sprintf("%d-%s", k, strings.Repeat("q", 40))), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(src, "many", fmt.Sprintf("%d-%s", k, strings.Repeat("q", 40))), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Create(filepath.Join(mnt, "prealloc"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, "prealloc"), make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		// rw-r----- and one more user, as getxattr(2) gives it.
		acl := []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff")
		for _, root := range []string{mnt, src} {
			if err := unix.Setxattr(filepath.Join(root, "one"), "system.posix_acl_access", acl, 0); err != nil {
				t.Fatal(err)
			}
		}
	})
	x, _ := open(t, image)
	if _, err := x.Inode(RootInode); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		sameAsSource(t, x, src)
	}
}

func TestRefusesOtherFiles(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty": nil, "short": make([]byte, 1500), "zero": make([]byte, 1<<20), "text": bytes.Repeat([]byte("text"), 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(memory(data)); err == nil {
				t.Error("opened")
			}
		})
	}
}

// memory is an image in memory.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m).ReadAt(p, off)
}

func (m memory) WriteAt(p []byte, off int64) (int, error) {
	return copy(m[off:], p), nil
}

// readAll does everything that can be done with an image, with bounds on what it
// reads of one file.
func readAll(data []byte) error {
	x, err := Open(memory(data))
	if err != nil {
		return err
	}
	files := 0
	return x.Walk(func(p string, i *Inode) error {
		if files++; files > 10000 {
			return errors.New("too many files")
		}
		if _, err := x.Xattrs(i); err != nil {
			return err
		}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			if _, err := x.Readlink(i); err != nil {
				return err
			}
		case unix.S_IFREG:
			r, err := x.Open(i)
			if err != nil {
				return err
			}
			if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil && err != io.EOF {
				return err
			}
		}
		return nil
	})
}

// FuzzDamagedImage changes a good image; whatever comes of it, reading ends.
func FuzzDamagedImage(f *testing.F) {
	path, _ := create(f, fuzzTree(f))
	image, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	if err := readAll(image); err != nil {
		f.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	used := 0
	for k, b := range image {
		if b != 0 {
			used = k
		}
	}
	for range 800 {
		f.Add(r.Uint32N(uint32(used)), r.Uint64(), uint8(r.Uint32()))
	}
	f.Fuzz(func(t *testing.T, off uint32, value uint64, width uint8) {
		bad := bytes.Clone(image)
		at := int(off) % (used + 1)
		for k := range int(width)%8 + 1 {
			if at+k < len(bad) {
				bad[at+k] = byte(value >> (8 * k))
			}
		}
		start := time.Now()
		_ = readAll(bad)
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func fuzzTree(t testing.TB) string {
	dir := t.TempDir()
	for k := range 20 {
		p := filepath.Join(dir, fmt.Sprintf("d%d", k%3))
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p, fmt.Sprintf("f%d", k)), bytes.Repeat([]byte{byte(k)}, k*700), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(strings.Repeat("y", 100), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(filepath.Join(dir, "d0"), "user.x", []byte("y"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	return dir
}
