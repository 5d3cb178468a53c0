package ext4

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var testUUID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// create makes an image of a tree.
func create(t testing.TB, dir string, change ...func(*Options)) (string, Stats) {
	t.Helper()
	o := Options{UUID: testUUID, Label: "test", Time: time.Unix(0, 0)}
	for _, c := range change {
		c(&o)
	}
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stats, err := Create(t.Context(), f, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() != stats.SizeBytes {
		t.Errorf("image of %d bytes, said to have %d", st.Size(), stats.SizeBytes)
	}
	return image, stats
}

func hashOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

func TestCreate(t *testing.T) {
	dir := sampleTree(t)
	image, stats := create(t, dir)
	fsck(t, image)
	x, _ := open(t, image)
	sameAsSource(t, x, dir)
	sameTimes(t, x, dir)
	nodes := 0
	if err := x.Walk(func(string, *Inode) error { nodes++; return nil }); err != nil {
		t.Fatal(err)
	}
	if want := int64(nodes) - 1; stats.Inodes != want { // one file has two names
		t.Errorf("got %d inodes, want %d", stats.Inodes, want)
	}
	t.Run("kernel", func(t *testing.T) {
		mnt := mountImage(t, image, "ro")
		if out, err := exec.Command("diff", "-r", "--no-dereference", "--exclude=fifo", "--exclude=null", "--exclude=bigdev", dir, mnt).CombinedOutput(); err != nil {
			t.Errorf("diff: %v\n%s", err, out)
		}
		list := func(root string) string {
			cmd := exec.Command("sh", "-c", `find . -mindepth 1 -printf '%P %y %m %U %G %T@ %l\n' | sort; find . -type f -printf '%P %s %n\n' | sort; getfattr -Rhd -m - . 2>/dev/null | sort; getcap -r . 2>/dev/null | sort`)
			cmd.Dir = root
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		if diff := cmp.Diff(strings.Split(list(dir), "\n"), strings.Split(list(mnt), "\n")); diff != "" {
			t.Errorf("what the kernel lists (-source +image):\n%s", diff)
		}
	})
}

// sameTimes compares modification times to the nanosecond.
func sameTimes(t *testing.T, x *FS, dir string) {
	t.Helper()
	err := x.Walk(func(p string, i *Inode) error {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, p), &st); err != nil {
			return err
		}
		if want := time.Unix(st.Mtim.Unix()); !i.Mtime.Equal(want) || !i.Atime.Equal(want) || !i.Ctime.Equal(want) {
			t.Errorf("%s: got %v %v %v, want %v", p, i.Mtime, i.Atime, i.Ctime, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCreateTimes(t *testing.T) {
	dir := t.TempDir()
	times := map[string]time.Time{
		"epoch":  time.Unix(0, 0),
		"nanos":  time.Unix(1700000000, 123456789),
		"before": time.Date(1969, 12, 31, 23, 59, 59, 999999999, time.UTC),
		"1935":   time.Date(1935, 1, 2, 3, 4, 5, 1, time.UTC),
		"2100":   time.Date(2100, 1, 2, 3, 4, 5, 1, time.UTC),
		"2300":   time.Date(2300, 1, 2, 3, 4, 5, 999999999, time.UTC),
		"last":   time.Date(2446, 5, 10, 22, 38, 55, 0, time.UTC),
	}
	for name, at := range times {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		ts := []unix.Timespec{unix.NsecToTimespec(0), {Sec: at.Unix(), Nsec: int64(at.Nanosecond())}}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, 0); err != nil {
			t.Fatal(err)
		}
	}
	root := time.Date(2020, 1, 1, 0, 0, 0, 7, time.UTC)
	image, _ := create(t, dir, func(o *Options) { o.RootTime = root })
	fsck(t, image)
	x, _ := open(t, image)
	err := x.Walk(func(p string, i *Inode) error {
		want, ok := times[strings.TrimPrefix(p, "/")]
		if p == "/" {
			want, ok = root, true
		}
		if !ok || !i.Mtime.Equal(want) {
			t.Errorf("%s: got %v, want %v", p, i.Mtime, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("kernel", func(t *testing.T) {
		mnt := mountImage(t, image, "ro")
		for name, want := range times {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(mnt, name), &st); err != nil {
				t.Fatal(err)
			}
			if got := time.Unix(st.Mtim.Unix()); !got.Equal(want) {
				t.Errorf("%s: the kernel sees %v, want %v", name, got, want)
			}
		}
	})
}

// The same tree made in another order, on another file system, read at another
// time, with its holes written out.
func TestCreateIsDeterministic(t *testing.T) {
	dir := sampleTree(t)
	first, _ := create(t, dir)
	if err := exec.Command("grep", "-rs", "-m1", "x", dir, "--exclude=fifo", "--devices=skip").Run(); err != nil {
		t.Fatal(err)
	}
	second, _ := create(t, dir)
	if hashOf(t, first) != hashOf(t, second) {
		t.Error("the same directory gives other bytes")
	}
	other := t.TempDir()
	if os.Geteuid() == 0 {
		if err := unix.Mount("tmpfs", other, "tmpfs", 0, ""); err == nil {
			t.Cleanup(func() {
				if err := unix.Unmount(other, 0); err != nil {
					t.Error(err)
				}
			})
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-a", "--sparse=never"}
	for _, e := range slices.Backward(entries) {
		args = append(args, filepath.Join(dir, e.Name()))
	}
	for _, cmd := range [][]string{append(append([]string{"cp"}, args...), other), {"chmod", "--reference=" + dir, other}, {"touch", "-r", dir, other}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Skipf("the tree cannot be copied: %v %s", err, out)
		}
	}
	// tmpfs keeps user attributes only since Linux 6.6.
	if err := unix.Setxattr(filepath.Join(other, "one"), "user.probe", []byte("x"), 0); err != nil {
		t.Skipf("no attributes there: %v", err)
	}
	if err := unix.Removexattr(filepath.Join(other, "one"), "user.probe"); err != nil {
		t.Fatal(err)
	}
	copied, _ := create(t, other)
	if hashOf(t, first) != hashOf(t, copied) {
		t.Error("the same tree elsewhere gives other bytes")
		x, _ := open(t, copied)
		sameAsSource(t, x, dir)
		sameTimes(t, x, dir)
	}
}

func TestCreateShapes(t *testing.T) {
	tests := map[string]struct {
		fill   func(t *testing.T, dir string)
		change func(*Options)
		used   int64 // bytes the image may take on disk; 0 is any
	}{
		"empty": {func(*testing.T, string) {}, nil, 64 << 10},
		"33000 inodes in two groups": {fill: func(t *testing.T, dir string) {
			for d := range 110 {
				sub := filepath.Join(dir, fmt.Sprint(d))
				mkdir(t, sub)
				for f := range 300 {
					put(t, filepath.Join(sub, fmt.Sprint(f)), nil)
				}
			}
		}, used: 20 << 20},
		"one large directory": {fill: func(t *testing.T, dir string) {
			for f := range 5000 {
				if err := os.Symlink("x", filepath.Join(dir, fmt.Sprintf("%d-%s", f, strings.Repeat("n", f%200)))); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"150 MiB in two groups": {fill: func(t *testing.T, dir string) {
			chunk := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			for f := range 5 {
				file, err := os.Create(filepath.Join(dir, fmt.Sprint(f)))
				if err != nil {
					t.Fatal(err)
				}
				for range 30 {
					if _, err := file.Write(chunk); err != nil {
						t.Fatal(err)
					}
				}
				if err := file.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"extents two levels deep": {fill: func(t *testing.T, dir string) {
			f, err := os.Create(filepath.Join(dir, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for k := range int64(3000) {
				if _, err := f.WriteAt([]byte{byte(k) | 1}, k*2*blockSize+k%blockSize); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"an extent longer than one": {fill: func(t *testing.T, dir string) {
			f, err := os.Create(filepath.Join(dir, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for k := range int64(maxExtentBlocks + 10) {
				if _, err := f.WriteAt([]byte{1}, k*blockSize+int64(k)%blockSize); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"a hole of 100 GiB": {fill: func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, "f"), []byte("x"))
			if err := os.Truncate(filepath.Join(dir, "f"), 100<<30); err != nil {
				t.Fatal(err)
			}
		}, used: 1 << 20},
		"written zeroes": {fill: func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, "f"), make([]byte, 20<<20))
			put(t, filepath.Join(dir, "g"), append(make([]byte, 5000), 'x'))
		}, used: 128 << 10},
		"descriptors in several blocks": {fill: func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, "f"), []byte("x"))
		}, change: func(o *Options) { o.leastGroups = 200 }, used: 4 << 20},
		"70000 directories in one": {fill: func(t *testing.T, dir string) {
			if os.Getenv("SIETCH_TEST_LARGE") == "" {
				t.Skip("SIETCH_TEST_LARGE is not set")
			}
			for k := range maxLinks + 10 {
				mkdir(t, filepath.Join(dir, fmt.Sprint(k)))
			}
		}},
		"attributes of all sizes": {fill: func(t *testing.T, dir string) {
			for k := range 100 {
				p := filepath.Join(dir, fmt.Sprint(k))
				put(t, p, nil)
				for a := range k % 4 {
					err := unix.Setxattr(p, fmt.Sprintf("user.%s%d", strings.Repeat("n", k%40), a), bytes.Repeat([]byte{byte(k)}, k*9), 0)
					if err != nil {
						t.Skipf("no attributes here: %v", err)
					}
				}
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tt.fill(t, dir)
			var change []func(*Options)
			if tt.change != nil {
				change = append(change, tt.change)
			}
			start := time.Now()
			image, stats := create(t, dir, change...)
			took := time.Since(start)
			fsck(t, image)
			st, err := os.Stat(image)
			if err != nil {
				t.Fatal(err)
			}
			used := st.Sys().(*syscall.Stat_t).Blocks * 512
			t.Logf("%v: %d inodes, %d KiB content, %d MiB image, %d KiB used", took, stats.Inodes, stats.ContentBytes>>10, stats.SizeBytes>>20, used>>10)
			if tt.used > 0 && used > tt.used {
				t.Errorf("the image takes %d bytes", used)
			}
			if name == "a hole of 100 GiB" {
				return // reading it all back would take minutes
			}
			x, _ := open(t, image)
			sameAsSource(t, x, dir)
		})
	}
}

func mkdir(t testing.TB, p string) {
	t.Helper()
	if err := os.Mkdir(p, 0o755); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, p string, data []byte) {
	t.Helper()
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Trees nobody thought of.
func TestCreateRandomTrees(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			randomTree(t, rand.New(rand.NewPCG(seed, 99)), dir)
			image, _ := create(t, dir)
			fsck(t, image)
			x, _ := open(t, image)
			sameAsSource(t, x, dir)
			sameTimes(t, x, dir)
			again, _ := create(t, dir)
			if hashOf(t, image) != hashOf(t, again) {
				t.Error("two images differ")
			}
		})
	}
}

func randomTree(t testing.TB, r *rand.Rand, dir string) {
	dirs, files := []string{dir}, []string{}
	for range 5 + r.IntN(200) {
		parent := dirs[r.IntN(len(dirs))]
		name := make([]byte, 1+r.IntN(1+r.IntN(60)))
		for k := range name {
			for name[k] == 0 || name[k] == '/' {
				name[k] = byte(r.Uint32())
			}
		}
		p := parent + "/" + string(name)
		if _, err := os.Lstat(p); err == nil {
			continue
		}
		var err error
		switch r.IntN(7) {
		case 0:
			if err = os.Mkdir(p, os.FileMode(0o700|r.Uint32N(0o100))); err == nil {
				dirs = append(dirs, p)
			}
		case 1:
			err = os.Symlink(strings.Repeat("t", 1+r.IntN(200)), p)
		case 2:
			if len(files) > 0 {
				err = os.Link(files[r.IntN(len(files))], p)
			}
		case 3:
			err = unix.Mkfifo(p, r.Uint32N(0o1000))
		default:
			err = randomFile(r, p)
			files = append(files, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.IntN(10) == 0 && len(files) > 0 {
			_ = unix.Setxattr(files[r.IntN(len(files))], fmt.Sprintf("user.%d", r.IntN(5)), make([]byte, r.IntN(900)), 0)
		}
	}
}

func randomFile(r *rand.Rand, p string) error {
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, os.FileMode(r.Uint32N(0o1000)))
	if err != nil {
		return err
	}
	defer f.Close()
	for range r.IntN(6) {
		data := make([]byte, r.IntN(30000))
		if r.IntN(3) > 0 {
			for k := range data {
				data[k] = byte(r.Uint32())
			}
		}
		if _, err := f.WriteAt(data, r.Int64N(1<<uint(1+r.IntN(22)))); err != nil {
			return err
		}
	}
	return nil
}

func TestCreateFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Create(t.Context(), f, "/nonexistent/tree", Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := Create(t.Context(), f, f.Name(), Options{}); err == nil {
		t.Error("a file was taken for a tree")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Create(ctx, f, sampleTree(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	closed, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := Create(t.Context(), closed, sampleTree(t), Options{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkCreate compares with mkfs.ext4 on the same tree.
func BenchmarkCreate(b *testing.B) {
	dir := os.Getenv("SIETCH_BENCH_TREE")
	if dir == "" {
		dir = sampleTree(b)
	}
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			create(b, dir)
		}
	})
	b.Run("mkfs", func(b *testing.B) {
		for b.Loop() {
			mkfs(b, dir, 2<<30)
		}
	})
}
