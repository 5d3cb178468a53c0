package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// GC removes what nothing leads to any more: commits, dumps of commits that are
// gone, and what killed commands left on the host.
func (e *Local) GC(ctx context.Context, dryRun bool) (GCReport, error) {
	if err := e.prepare(); err != nil {
		return GCReport{}, err
	}
	out := GCReport{DryRun: dryRun}
	if !dryRun {
		n, err := e.sweep(ctx)
		if err != nil {
			return out, err
		}
		out.LeftoverDirs = n
	}
	lock, err := waitLock(ctx, filepath.Join(e.cache(), "lock"), unix.LOCK_EX, e.opts.LockWait)
	if errors.Is(err, errLocked) {
		return out, busy("try again when they are through", "commits are being forked or checked out")
	}
	if err != nil {
		return out, err
	}
	defer lock.unlock()
	err = e.withStore(ctx, func(s *branches.Store) error {
		roots, err := e.extraRoots()
		if err != nil {
			return err
		}
		if err := e.forgetLostHeads(ctx, s, dryRun); err != nil {
			return err
		}
		plan, err := s.PlanGC(ctx, branches.GCOptions{ExtraRoots: roots})
		if err != nil {
			return err
		}
		gone := map[string]bool{}
		for _, id := range plan.Commits {
			gone[id.String()] = true
		}
		out.Commits, out.Chunks, out.FreedBytes, out.WaitingBytes = len(plan.Commits), plan.Chunks, plan.FreedBytes, plan.WaitingBytes
		if !dryRun {
			res, err := plan.Execute(ctx)
			if err != nil {
				return err
			}
			out.Commits, out.Chunks, out.FreedBytes, out.WaitingBytes = int(res.Commits), res.Chunks, res.FreedBytes, res.WaitingBytes
		}
		out.CachedBytes, err = e.dropDumps(ctx, s, gone, dryRun)
		return err
	})
	if err == nil && !dryRun {
		e.emit(Event{Type: "gc"})
	}
	return out, err
}

// sweep removes what no sandbox owns: half-made ones, scratch directories, run
// directories with their processes, and networks.
func (e *Local) sweep(ctx context.Context) (int, error) {
	global, err := e.lockSandboxes(ctx)
	if err != nil {
		return 0, err
	}
	defer global.unlock()
	n := e.reap(ctx)
	records, err := e.records()
	if err != nil {
		return n, err
	}
	var keep []netplumb.Network
	runs := map[string]bool{}
	for _, r := range records {
		if nw, err := r.netplumb(); err == nil && r.RunDir != "" {
			keep = append(keep, nw)
		}
		runs[r.RunDir] = true
	}
	entries, err := os.ReadDir(e.runs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	for _, de := range entries {
		dir := filepath.Join(e.runs(), de.Name())
		if runs[dir] || !de.IsDir() {
			continue
		}
		if err := errors.Join(process.KillIn(dir), os.RemoveAll(dir)); err != nil {
			return n, fmt.Errorf("remove left-over run directory: %w", err)
		}
		n++
	}
	groups, err := jail.Groups(e.cgroups())
	if err != nil {
		return n, err
	}
	for _, id := range groups {
		if slices.ContainsFunc(records, func(r *record) bool { return r.ID == id }) {
			continue
		}
		if err := jail.RemoveGroup(e.cgroup(id)); err != nil {
			return n, err
		}
		n++
	}
	p, err := e.plumber()
	if err != nil {
		return n, err
	}
	removed, err := p.Sweep(ctx, keep)
	n += len(removed)
	b, berr := e.imageStore()
	if berr == nil {
		berr = b.Sweep()
	}
	return n, errors.Join(err, berr)
}

// extraRoots are commits that running machines were made from.
func (e *Local) extraRoots() ([]branches.Hash, error) {
	records, err := e.records()
	if err != nil {
		return nil, err
	}
	var roots []branches.Hash
	add := func(h branches.Hash) {
		if !h.IsZero() {
			roots = append(roots, h)
		}
	}
	for _, r := range records {
		add(r.Memory.Base)
		add(r.Head.Commit)
		if r.Swap != nil {
			add(r.Swap.Commit)
		}
		if t, err := e.loadTracking(r); err == nil {
			add(t.Since)
		}
	}
	return roots, nil
}

// forgetLostHeads removes HEADs of sandboxes that are not there any more.
func (e *Local) forgetLostHeads(ctx context.Context, s *branches.Store, dryRun bool) error {
	heads, err := s.Heads(ctx)
	if err != nil || dryRun {
		return err
	}
	for id := range heads {
		if !exists(e.sandbox(id)) {
			if err := forgetHead(ctx, s, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropDumps removes the hot dumps of commits that are gone. The caller holds the
// cache lock alone.
func (e *Local) dropDumps(ctx context.Context, s *branches.Store, gone map[string]bool, dryRun bool) (int64, error) {
	if !dryRun {
		if err := e.dropOldDumps(); err != nil {
			return 0, err
		}
	}
	entries, err := os.ReadDir(e.dumps())
	if err != nil {
		return 0, err
	}
	var freed int64
	for _, de := range entries {
		id, err := branches.ParseHash(de.Name())
		if err == nil && !gone[de.Name()] {
			if _, err = s.Commit(ctx, id); err == nil {
				continue
			}
			if !errors.Is(err, branches.ErrNotFound) {
				return freed, err
			}
		}
		d := dump{filepath.Join(e.dumps(), de.Name())}
		n := allocatedBytes(d.memory()) + allocatedBytes(d.layer())
		if !dryRun {
			if err := os.RemoveAll(d.dir); err != nil {
				return freed, err
			}
		}
		freed += n
	}
	return freed, nil
}

// Fsck checks the store, and that sandboxes and commits have what they need.
func (e *Local) Fsck(ctx context.Context) (FsckReport, error) {
	out := FsckReport{Problems: []FsckProblem{}}
	if err := e.prepare(); err != nil {
		return out, err
	}
	say := func(hint, object, format string, args ...any) {
		out.Problems = append(out.Problems, FsckProblem{Object: object, Reason: fmt.Sprintf(format, args...), Hint: hint})
	}
	err := e.withStore(ctx, func(s *branches.Store) error {
		rep, err := s.Fsck(ctx, branches.FsckOptions{})
		if err != nil {
			return err
		}
		out.Commits, out.Chunks = int(rep.Commits), rep.Chunks
		for _, p := range rep.Problems {
			hint := ""
			if len(p.Commits) > 0 {
				hint = "commit " + p.Commits[0].Short() + " cannot be restored because of it"
			}
			say(hint, p.Kind+" "+p.Object, "%s", p.Detail)
		}
		return e.fsckImages(ctx, s, say)
	})
	if err != nil {
		return out, err
	}
	return out, e.fsckSandboxes(ctx, say)
}

type sayFunc func(hint, object, format string, args ...any)

// fsckImages finds commits whose image or kernel is not here.
func (e *Local) fsckImages(ctx context.Context, s *branches.Store, say sayFunc) error {
	_, from, err := e.pointers(ctx, s)
	if err != nil {
		return err
	}
	commits, err := s.Log(ctx, from, 0)
	if err != nil {
		return err
	}
	b, err := e.imageStore()
	if err != nil {
		return err
	}
	o, err := e.guestOptions()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, c := range commits {
		m, err := commitMachine(c)
		if err != nil {
			say("", "commit "+c.ID.Short(), "%v", err)
			continue
		}
		if !seen[m.Image.ID] {
			seen[m.Image.ID] = true
			if _, err := b.Image(ctx, m.Image.ID); err != nil {
				say("build or import it again: the same input gives the same id", "commit "+c.ID.Short(), "image %s: %v", m.Image.Name, err)
			}
		}
		if !seen[m.Kernel] {
			seen[m.Kernel] = true
			if _, err := guestboot.Find(ctx, o, guestboot.Digests{Kernel: m.Kernel}); err != nil {
				say("", "commit "+c.ID.Short(), "guest kernel: %v", err)
			}
		}
	}
	return nil
}

func (e *Local) fsckSandboxes(ctx context.Context, say sayFunc) error {
	records, err := e.records()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Version == 0 {
			say("remove it: sietch rm -f "+r.ID, "sandbox "+r.Name, "%s", r.Fault)
			continue
		}
		if st, err := os.Stat(e.layer(r.ID)); err != nil && r.Phase == settled {
			say("put it back: sietch checkout "+r.Name+" REF", "sandbox "+r.Name, "its disk is missing: %v", err)
		} else if err == nil && st.Size() != r.Machine.DiskBytes && r.Phase == settled {
			say("put it back: sietch checkout "+r.Name+" REF", "sandbox "+r.Name, "its disk has %d bytes, not %d", st.Size(), r.Machine.DiskBytes)
		}
	}
	return nil
}

// DiskUsage says what the data directory takes on disk.
func (e *Local) DiskUsage(ctx context.Context) (UsageReport, error) {
	var out UsageReport
	if err := e.readable(); err != nil {
		return out, err
	}
	for _, p := range []struct {
		dir   string
		bytes *int64
	}{
		{e.layout.images(), &out.ImagesBytes}, {e.store(), &out.StoreBytes}, {e.cache(), &out.CacheBytes},
		{e.sandboxes(), &out.SandboxesBytes}, {e.build(), &out.BuildCacheBytes}, {e.kernel(), &out.KernelBytes},
	} {
		seen := map[uint64]bool{}
		err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // changing beneath us, or not there yet
			}
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil && !(st.Nlink > 1 && st.Mode&unix.S_IFMT == unix.S_IFREG && seen[st.Ino]) {
				seen[st.Ino] = true
				*p.bytes += st.Blocks * 512
			}
			return ctx.Err()
		})
		if err != nil {
			return out, fmt.Errorf("measure %s: %w", p.dir, err)
		}
	}
	return out, nil
}
