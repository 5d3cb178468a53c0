package guestboot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeSource is a distribution with one small kernel.
type fakeSource struct {
	fetched atomic.Int32
	image   []byte
	err     error
}

func (f *fakeSource) fetch(_ context.Context, dir string, _ *slog.Logger) (kernelPackage, error) {
	f.fetched.Add(1)
	if f.err != nil {
		return kernelPackage{}, f.err
	}
	p := kernelPackage{Version: "6.1.0-fake", Modules: make(map[string]string), Debs: map[string]string{"linux-image-fake 1": "00"}}
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			panic(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			panic(err)
		}
		return path
	}
	p.Image = write("vmlinuz", f.image)
	p.Builtin = write("modules.builtin", []byte("kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio-mmio.ko\n"))
	for _, name := range []string{"virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "overlay", "tun"} {
		p.Modules[name] = write(name+".ko", kernelObject("depends="))
	}
	return p, nil
}

func newSource() *fakeSource { return &fakeSource{image: kernelFile("Xen", 18)} }

func TestEnsure(t *testing.T) {
	ctx := context.Background()
	from := newSource()
	o := Options{Dir: filepath.Join(t.TempDir(), "kernel"), InitELF: []byte("init 1")}

	// Several at once: one fetches.
	var wg sync.WaitGroup
	guests := make([]Guest, 8)
	for i := range guests {
		wg.Go(func() {
			var err error
			if guests[i], err = ensure(ctx, o, from); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g := guests[0]
	for _, other := range guests {
		if other != g {
			t.Errorf("got %+v and %+v", g, other)
		}
	}
	if n := from.fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	for path, digest := range map[string]string{g.Kernel: g.KernelDigest, g.Initramfs: g.InitramfsDigest} {
		b, err := os.ReadFile(path)
		if err != nil || digestOf(b) != digest {
			t.Errorf("%s: %v, digest %s; want %s", path, err, digestOf(b), digest)
		}
	}
	if g.KernelVersion != "6.1.0-fake" || !strings.HasPrefix(g.Cmdline, "quiet ") {
		t.Errorf("got %+v", g)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "new-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	// Another guest init: another initramfs, the same kernel.
	o2 := o
	o2.InitELF = []byte("init 2")
	g2, err := ensure(ctx, o2, from)
	if err != nil || g2.KernelDigest != g.KernelDigest || g2.InitramfsDigest == g.InitramfsDigest || from.fetched.Load() != 1 {
		t.Errorf("got %+v, %v", g2, err)
	}

	for _, c := range []struct {
		name string
		d    Digests
		want Guest
		err  error
	}{
		{"both", Digests{g.KernelDigest, g.InitramfsDigest}, g, nil},
		{"the other", Digests{g.KernelDigest, g2.InitramfsDigest}, g2, nil},
		{"any initramfs", Digests{Kernel: g.KernelDigest}, g, nil},
		{"no such initramfs", Digests{g.KernelDigest, g.KernelDigest}, Guest{}, ErrNotFound},
		{"no such kernel", Digests{Kernel: g.InitramfsDigest}, Guest{}, ErrNotFound},
		{"a path", Digests{Kernel: "sha256:../../etc"}, Guest{}, ErrNotFound},
		{"nothing", Digests{}, Guest{}, ErrNotFound},
	} {
		got, err := Find(ctx, o, c.d)
		if !errors.Is(err, c.err) || err == nil && got != c.want {
			t.Errorf("%s: got %+v, %v; want %v", c.name, got, err, c.err)
		}
	}
}

func TestEnsureFailures(t *testing.T) {
	ctx := context.Background()
	o := Options{Dir: t.TempDir(), InitELF: []byte("init")}
	from := newSource()
	from.err = fmt.Errorf("%w: out of reach", ErrMirror)
	if _, err := ensure(ctx, o, from); !errors.Is(err, ErrMirror) {
		t.Errorf("got %v, want ErrMirror", err)
	}
	if _, err := ensure(ctx, Options{Dir: o.Dir}, newSource()); err == nil {
		t.Error("no error without a guest init")
	}
	if _, err := ensure(ctx, o, &fakeSource{image: []byte("no kernel")}); err == nil || !strings.Contains(err.Error(), "not an x86 boot image") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "*")); len(left) > 2 { // lock and clock
		t.Errorf("left behind: %v", left)
	}

	// One that waits for another process's fetch can be interrupted.
	unlock, err := store{o.Dir}.lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := ensure(short, o, newSource()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	unlock()
	if _, err := ensure(ctx, o, newSource()); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// What an older sietch kept is fetched again once, and used where it cannot be.
func TestEnsureOlderFormat(t *testing.T) {
	ctx := context.Background()
	age := func(o Options, digest string) {
		t.Helper()
		file := filepath.Join(store{o.Dir}.kernelDir(digest), "kernel.json")
		var k kernelRecord
		if err := readRecord(file, &k); err != nil {
			t.Fatal(err)
		}
		k.Format--
		if err := writeRecord(file, k); err != nil {
			t.Fatal(err)
		}
		// A module that was not kept then.
		if err := os.Remove(filepath.Join(store{o.Dir}.kernelDir(digest), "modules", "tun.ko")); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(store{o.Dir}.path("initramfs")); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Dir: t.TempDir(), InitELF: []byte("init")}
	from := newSource()
	g, err := ensure(ctx, o, from)
	if err != nil {
		t.Fatal(err)
	}
	age(o, g.KernelDigest)
	again, err := ensure(ctx, o, from)
	if err != nil || again != g || from.fetched.Load() != 2 {
		t.Errorf("got %+v, %v after %d fetches; want %+v after 2", again, err, from.fetched.Load(), g)
	}

	age(o, g.KernelDigest)
	from.err = ErrMirror
	for range 2 { // the second time it is not even tried
		old, err := ensure(ctx, o, from)
		if err != nil || old.KernelDigest != g.KernelDigest || old.InitramfsDigest == g.InitramfsDigest {
			t.Errorf("without a mirror: got %+v, %v", old, err)
		}
	}
	if n := from.fetched.Load(); n != 3 {
		t.Errorf("fetched %d times, want 3", n)
	}
}

func BenchmarkEnsure(b *testing.B) {
	o := Options{Dir: b.TempDir(), InitELF: make([]byte, 4<<20)}
	from := newSource()
	for b.Loop() {
		if _, err := ensure(context.Background(), o, from); err != nil {
			b.Fatal(err)
		}
	}
}
