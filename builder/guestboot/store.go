package guestboot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// store is the directory:
//
//	current.json                    {"kernel": DIGEST} new sandboxes boot with
//	kernels/HEX/vmlinux             by digest of the file
//	kernels/HEX/kernel.json         kernelRecord, written last
//	kernels/HEX/modules/NAME.ko     what may go into an initramfs, as loaded
//	kernels/HEX/initramfs-KEY.json  {"initramfs": DIGEST} made with a guest init
//	initramfs/HEX.cpio              by digest of the file
//	clock.json                      clock, of this start of the host
//	lock, new-*                     being written
type store struct{ dir string }

// kernelRecord describes a kernel in the store.
type kernelRecord struct {
	Format  int               `json:"format"`
	Digest  string            `json:"digest"`
	Version string            `json:"version"`
	Builtin []string          `json:"builtin"` // modules inside the kernel
	Debs    map[string]string `json:"packages"`
}

// kernelFormat counts changes of what is kept of a kernel: a new entry in one of
// the lists of modules, say. A kernel kept by an older sietch still boots what
// was made with it; for new sandboxes it is fetched again.
const kernelFormat = 3

type currentRecord struct {
	Kernel string `json:"kernel"`
	// Tried is the format in which it could not be fetched anew: it is used as
	// it is then, and not tried again at every start.
	Tried int `json:"tried,omitempty"`
}

type initramfsRecord struct {
	Initramfs string `json:"initramfs"`
}

func (s store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s store) kernelDir(digest string) string { return s.path("kernels", digestHex(digest)) }

func (s store) initramfsPath(digest string) string {
	return s.path("initramfs", digestHex(digest)+".cpio")
}

// digestHex is the file name for a digest; one that is not well formed names
// nothing.
func digestHex(digest string) string {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(h) != h {
		return "malformed"
	}
	return h
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func readRecord(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func writeRecord(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600)
}

// current is the guest made of the current kernel and the guest init of key, or
// fs.ErrNotExist when one of the parts is missing.
func (s store) current(key string) (Guest, error) {
	k, err := s.currentKernel()
	if err != nil {
		return Guest{}, err
	}
	return s.guestByKey(k, key)
}

// currentKernel is the one new sandboxes boot with. For one of an older format it
// is fs.ErrNotExist, with the record.
func (s store) currentKernel() (kernelRecord, error) {
	var c currentRecord
	if err := readRecord(s.path("current.json"), &c); err != nil {
		return kernelRecord{}, err
	}
	k, err := s.kernel(c.Kernel)
	if err == nil && max(k.Format, c.Tried) < kernelFormat {
		err = fmt.Errorf("guest kernel %s was kept by an older sietch: %w", k.Version, fs.ErrNotExist)
	}
	return k, err
}

func (s store) setCurrent(c currentRecord) error { return writeRecord(s.path("current.json"), c) }

func (s store) kernel(digest string) (k kernelRecord, err error) {
	if err := readRecord(filepath.Join(s.kernelDir(digest), "kernel.json"), &k); err != nil {
		return k, err
	}
	_, err = os.Stat(filepath.Join(s.kernelDir(digest), "vmlinux"))
	return k, err
}

func (s store) guestByKey(k kernelRecord, key string) (Guest, error) {
	var r initramfsRecord
	if err := readRecord(filepath.Join(s.kernelDir(k.Digest), "initramfs-"+key+".json"), &r); err != nil {
		return Guest{}, err
	}
	return s.guest(k, r.Initramfs)
}

func (s store) guest(k kernelRecord, initramfs string) (Guest, error) {
	g := Guest{
		Kernel:          filepath.Join(s.kernelDir(k.Digest), "vmlinux"),
		Initramfs:       s.initramfsPath(initramfs),
		KernelVersion:   k.Version,
		KernelDigest:    k.Digest,
		InitramfsDigest: initramfs,
		Cmdline:         s.cmdline(),
	}
	_, err := os.Stat(g.Initramfs)
	return g, err
}

func (s store) find(ctx context.Context, initELF []byte, d Digests) (Guest, error) {
	missing := func(what string, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNotFound
		}
		return fmt.Errorf("find guest %s: %w", what, err)
	}
	k, err := s.kernel(d.Kernel)
	if err != nil {
		return Guest{}, missing("kernel "+d.Kernel, err)
	}
	if d.Initramfs != "" {
		g, err := s.guest(k, d.Initramfs)
		if err != nil {
			return Guest{}, missing("initramfs "+d.Initramfs, err)
		}
		return g, nil
	}
	key := initramfsKey(sha256.Sum256(initELF))
	g, err := s.guestByKey(k, key)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return g, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Guest{}, err
	}
	defer unlock()
	return s.addInitramfs(k, key, initELF)
}

// addKernel fetches a kernel and puts it into the store. The directory appears
// under its final name complete or not at all.
func (s store) addKernel(ctx context.Context, from source, log *slog.Logger) (_ kernelRecord, err error) {
	s.sweep()
	tmp, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return kernelRecord{}, fmt.Errorf("fetch guest kernel: %w", err)
	}
	defer os.RemoveAll(tmp)

	p, err := from.fetch(ctx, filepath.Join(tmp, "fetched"), log)
	if err != nil {
		return kernelRecord{}, fmt.Errorf("fetch guest kernel: %w", err)
	}
	ready := filepath.Join(tmp, "kernel")
	k, err := prepareKernel(p, ready)
	if err != nil {
		return kernelRecord{}, fmt.Errorf("prepare guest kernel %s: %w", p.Version, err)
	}
	if err := os.MkdirAll(s.path("kernels"), 0o700); err != nil {
		return kernelRecord{}, fmt.Errorf("keep guest kernel: %w", err)
	}
	final := s.kernelDir(k.Digest)
	if err := syncTree(ready); err != nil {
		return kernelRecord{}, fmt.Errorf("keep guest kernel: %w", err)
	}
	err = os.Rename(ready, final)
	if errors.Is(err, fs.ErrExist) { // the same kernel, kept by an older sietch
		err = moveInto(ready, final)
	}
	if err == nil {
		err = syncDir(s.path("kernels"))
	}
	if err != nil {
		return kernelRecord{}, fmt.Errorf("keep guest kernel: %w", err)
	}
	log.Info("guest kernel is ready", "version", k.Version, "digest", k.Digest)
	return k, nil
}

// moveInto moves modules and then the record of a kernel over those of the same
// kernel. Whoever reads meanwhile finds the modules the record he has read needs.
func moveInto(from, to string) error {
	mods, err := filepath.Glob(filepath.Join(from, "modules", "*.ko"))
	if err != nil {
		return err
	}
	for _, m := range mods {
		if err := os.Rename(m, filepath.Join(to, "modules", filepath.Base(m))); err != nil {
			return err
		}
	}
	if err := syncDir(filepath.Join(to, "modules")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(from, "kernel.json"), filepath.Join(to, "kernel.json")); err != nil {
		return err
	}
	return syncDir(to)
}

// prepareKernel turns a package into what the store keeps, in dir.
func prepareKernel(p kernelPackage, dir string) (kernelRecord, error) {
	if err := os.MkdirAll(filepath.Join(dir, "modules"), 0o700); err != nil {
		return kernelRecord{}, err
	}
	image, err := os.ReadFile(p.Image)
	if err != nil {
		return kernelRecord{}, err
	}
	if image, err = bootable(image); err != nil {
		return kernelRecord{}, fmt.Errorf("unpack %s: %w", filepath.Base(p.Image), err)
	}
	builtin, err := os.ReadFile(p.Builtin)
	if err != nil {
		return kernelRecord{}, err
	}
	k := kernelRecord{Format: kernelFormat, Digest: digestOf(image), Version: p.Version, Debs: p.Debs}
	for line := range strings.Lines(string(builtin)) {
		k.Builtin = append(k.Builtin, moduleName(strings.TrimSpace(line)))
	}
	slices.Sort(k.Builtin)

	mods, err := readModules(p.Modules, k.Builtin)
	if err != nil {
		return kernelRecord{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(mods)) {
		if err := os.WriteFile(filepath.Join(dir, "modules", name+".ko"), mods[name], 0o600); err != nil {
			return kernelRecord{}, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinux"), image, 0o600); err != nil {
		return kernelRecord{}, err
	}
	return k, writeRecord(filepath.Join(dir, "kernel.json"), k)
}

// addInitramfs builds the initramfs of k with a guest init. The same input
// gives the same bytes.
func (s store) addInitramfs(k kernelRecord, key string, initELF []byte) (Guest, error) {
	modules, err := s.modules(k)
	if err != nil {
		return Guest{}, fmt.Errorf("build initramfs: %w", err)
	}
	var archive bytes.Buffer
	if err := writeInitramfs(&archive, initELF, modules); err != nil {
		return Guest{}, fmt.Errorf("build initramfs: %w", err)
	}
	digest := digestOf(archive.Bytes())
	if err := os.MkdirAll(s.path("initramfs"), 0o700); err != nil {
		return Guest{}, fmt.Errorf("keep initramfs: %w", err)
	}
	if _, err := os.Stat(s.initramfsPath(digest)); err != nil {
		if err := renameio.WriteFile(s.initramfsPath(digest), archive.Bytes(), 0o600); err != nil {
			return Guest{}, fmt.Errorf("keep initramfs: %w", err)
		}
	}
	if err := writeRecord(filepath.Join(s.kernelDir(k.Digest), "initramfs-"+key+".json"), initramfsRecord{digest}); err != nil {
		return Guest{}, fmt.Errorf("keep initramfs: %w", err)
	}
	return s.guest(k, digest)
}

// modules reads the modules of k back.
func (s store) modules(k kernelRecord) (map[string][]byte, error) {
	dir := filepath.Join(s.kernelDir(k.Digest), "modules")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	mods := make(map[string][]byte, len(entries))
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".ko")
		if !ok {
			continue
		}
		if mods[name], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// sweep removes what an interrupted fetch left; the caller holds the lock.
func (s store) sweep() {
	left, _ := filepath.Glob(s.path("new-*"))
	for _, d := range left {
		os.RemoveAll(d)
	}
}

// syncTree flushes a directory and everything in it to disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncDir(path)
	})
}

// syncDir flushes one directory, or file, to disk.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
