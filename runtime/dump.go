package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
)

// dump is the hot form of one commit: files a VMM can use as they are.
type dump struct {
	dir string
}

func (d dump) memory() string  { return filepath.Join(d.dir, "memory") }
func (d dump) layer() string   { return filepath.Join(d.dir, "layer.ext4") }
func (d dump) devices() string { return filepath.Join(d.dir, "devices") }

func (d dump) exists() bool {
	_, err := os.Stat(d.dir)
	return err == nil
}

// touch marks the dump as used now; the oldest are evicted first.
func (d dump) touch() {
	now := time.Now()
	os.Chtimes(d.dir, now, now)
}

// lockDumps keeps dumps from being evicted, and commits from being collected,
// while somebody is between finding a commit and giving it to a sandbox.
func (e *Local) lockDumps(ctx context.Context) (*fileLock, error) {
	return waitLock(ctx, filepath.Join(e.cache(), "lock"), unix.LOCK_SH, e.opts.LockWait)
}

// ensureDump makes sure that the hot form of c is there, making it from the
// store if need be. The caller holds lockDumps.
func (e *Local) ensureDump(ctx context.Context, s *branches.Store, c *branches.Commit) (dump, error) {
	d := e.dump(c.ID)
	if d.exists() {
		d.touch()
		return d, nil
	}
	tmp, err := e.newScratch("dump")
	if err != nil {
		return d, err
	}
	defer tmp.remove()
	if err := e.materialize(ctx, s, c, dump{tmp.dir}); err != nil {
		return d, fmt.Errorf("restore commit %s from the store: %w", c.ID.Short(), err)
	}
	return d, installDump(tmp.dir, d)
}

// installDump gives a finished dump its name. That another command was faster
// is fine: both hold the same.
func installDump(from string, d dump) error {
	err := os.Rename(from, d.dir)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep dump: %w", err)
	}
	return nil
}

func (e *Local) materialize(ctx context.Context, s *branches.Store, c *branches.Commit, d dump) error {
	g, ctx := errgroup.WithContext(ctx)
	one := func(m branches.Map, path string, mode os.FileMode) {
		g.Go(func() error {
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := s.Materialize(ctx, m, f, branches.MaterializeOptions{}); err != nil {
				return err
			}
			return f.Chmod(mode)
		})
	}
	one(c.Disk, d.layer(), 0o600)
	if c.Memory != nil {
		one(*c.Memory, d.memory(), 0o400)
		g.Go(func() error {
			data, err := s.Blob(ctx, c.Devices)
			if err != nil {
				return err
			}
			return unpackDevices(data, d.devices())
		})
	}
	return g.Wait()
}

// Device state is a few small files; as a blob they are one deterministic CBOR
// map from name to content.
func packDevices(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read device state: %w", err)
	}
	files := map[string][]byte{}
	for _, f := range entries {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read device state: %w", err)
		}
		files[f.Name()] = data
	}
	mode, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		return nil, err
	}
	return mode.Marshal(files)
}

func unpackDevices(data []byte, dir string) error {
	var files map[string][]byte
	if err := cbor.Unmarshal(data, &files); err != nil {
		return fmt.Errorf("decode device state: %w: %w", branches.ErrCorrupt, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		if name != filepath.Base(name) || name == "." || name == ".." {
			return fmt.Errorf("decode device state: file name %q: %w", name, branches.ErrCorrupt)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// zeroFile returns the file of zeroes that fresh RAM of that size maps. It is
// sparse, immutable and shared by every sandbox of that size.
func (e *Local) zeroFile(size int64) (string, error) {
	path := e.zero(size)
	if st, err := os.Stat(path); err == nil && st.Size() == size {
		return path, nil
	}
	f, err := os.CreateTemp(e.cache(), ".zero-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := errors.Join(f.Truncate(size), f.Chmod(0o400)); err != nil {
		return "", err
	}
	return path, os.Rename(f.Name(), path)
}

// evictDumps removes the least recently used dumps until what is left fits the
// limit. Those a sandbox maps stay, and so do all while somebody is about to
// use one.
func (e *Local) evictDumps(limit int64) (freed int64, err error) {
	lock, err := tryLock(filepath.Join(e.cache(), "lock"), unix.LOCK_EX)
	if errors.Is(err, errLocked) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.unlock()
	mapped := map[string]bool{}
	records, err := e.records()
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		mapped[r.Memory.Base.String()] = true
		if t, err := e.loadTracking(r); err == nil {
			mapped[t.Since.String()] = true
		}
	}
	if err := e.dropOldDumps(); err != nil {
		return 0, err
	}
	type entry struct {
		d     dump
		bytes int64
		used  time.Time
	}
	var list []entry
	var total int64
	entries, err := os.ReadDir(e.dumps())
	if err != nil {
		return 0, err
	}
	for _, de := range entries {
		d := dump{filepath.Join(e.dumps(), de.Name())}
		st, err := os.Stat(d.dir)
		if err != nil {
			continue
		}
		n := allocatedBytes(d.memory()) + allocatedBytes(d.layer())
		total += n
		if !mapped[de.Name()] {
			list = append(list, entry{d, n, st.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return a.used.Compare(b.used) })
	for _, it := range list {
		if total <= limit {
			break
		}
		if err := os.RemoveAll(it.d.dir); err != nil {
			return freed, fmt.Errorf("evict dump: %w", err)
		}
		total -= it.bytes
		freed += it.bytes
	}
	return freed, nil
}

// dropOldDumps removes those of earlier boots of the host.
func (e *Local) dropOldDumps() error {
	old, err := filepath.Glob(filepath.Join(e.cache(), dumpsPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if dir != e.dumps() {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove dumps of an earlier boot: %w", err)
			}
		}
	}
	return nil
}

// cacheLimit is what hot dumps may take: as set, or half of what the file
// system could give them.
func (e *Local) cacheLimit() int64 {
	if e.opts.CacheLimitBytes > 0 {
		return e.opts.CacheLimitBytes
	}
	free, err := freeBytes(e.cache())
	if err != nil {
		return 0
	}
	var used int64
	entries, _ := os.ReadDir(e.dumps())
	for _, de := range entries {
		d := dump{filepath.Join(e.dumps(), de.Name())}
		used += allocatedBytes(d.memory()) + allocatedBytes(d.layer())
	}
	return (free + used) / 2
}

// freeBytes is what the file system of a directory can still take.
func freeBytes(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// tracking says since which commit a VMM's dirty tracker has been counting.
// It belongs to one VMM process and is written without fsync: it need not
// survive what the process does not.
type tracking struct {
	// Since is zero while nothing is known, as after a commit that failed
	// midway: then every page written since the launch counts as changed.
	Since      branches.Hash   `json:"since,omitzero"`
	Generation int             `json:"generation"`
	State      json.RawMessage `json:"state,omitempty"`
}

func (l layout) trackingPath(id string) string {
	return filepath.Join(l.sandbox(id), "tracking.json")
}

// loadTracking returns an empty tracking when there is none for this launch.
func (l layout) loadTracking(r *record) (tracking, error) {
	t := tracking{Generation: r.Memory.Generation}
	data, err := os.ReadFile(l.trackingPath(r.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	var stored tracking
	if json.Unmarshal(data, &stored) != nil || stored.Generation != r.Memory.Generation {
		return t, nil
	}
	return stored, nil
}

func (l layout) saveTracking(id string, t tracking) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	tmp := l.trackingPath(id) + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, l.trackingPath(id))
}
