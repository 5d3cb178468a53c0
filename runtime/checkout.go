package runtime

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/netplumb"
)

// Checkout puts a sandbox back to a commit, in place: same name, address and
// forwarded ports. What it was is committed first, unless NoSave, and stays
// reachable as NAME@{1}.
func (e *Local) Checkout(ctx context.Context, q CheckoutRequest) (Sandbox, error) {
	if err := validName("sandbox", q.Name); err != nil {
		return Sandbox{}, err
	}
	if q.NewBranch != "" {
		if err := validName("branch", q.NewBranch); err != nil {
			return Sandbox{}, err
		}
	}
	if q.Ref == "" {
		return Sandbox{}, usage("", "no ref given")
	}
	if err := e.prepare(); err != nil {
		return Sandbox{}, err
	}
	r, lock, err := e.lockSandbox(ctx, q.Name)
	if err != nil {
		return Sandbox{}, err
	}
	defer lock.unlock()
	dumps, err := e.lockDumps(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	defer dumps.unlock()

	t, err := e.checkoutTarget(ctx, r, q)
	if err != nil {
		return Sandbox{}, err
	}
	defer t.tmp.remove()
	var saved *branches.Commit
	if !q.NoSave {
		saved, _, err = e.record(ctx, r, CommitRequest{Name: r.Name, DiskOnly: r.Handle == nil,
			Message: fmt.Sprintf("saved before checkout of %s", q.Ref)}, autosave)
		if err != nil {
			return Sandbox{}, fmt.Errorf("save the present state of %s: %w", r.Name, err)
		}
	}
	if err := e.swap(ctx, r, t, saved); err != nil {
		return Sandbox{}, err
	}
	if err := e.withStore(ctx, func(s *branches.Store) error { return e.moveHead(ctx, s, r, q, t, saved) }); err != nil {
		return Sandbox{}, err
	}
	if err := e.save(r); err != nil {
		return Sandbox{}, hostError(err)
	}
	return e.view(ctx, r), nil
}

// target is a commit made ready to become a sandbox's present state.
type target struct {
	tmp    *scratch
	commit *branches.Commit
	mach   machine
	branch string // HEAD attaches to it; empty: detached
	from   source
	layer  string // our own clone of its layer
}

func (e *Local) checkoutTarget(ctx context.Context, r *record, q CheckoutRequest) (t *target, err error) {
	tmp, err := e.newScratch("checkout")
	if err != nil {
		return nil, hostError(err)
	}
	t = &target{tmp: tmp, layer: tmp.path("layer.ext4")}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.remove())
		}
	}()
	return t, e.withStore(ctx, func(s *branches.Store) error {
		c, res, err := e.resolve(ctx, s, q.Ref)
		if err != nil {
			return err
		}
		t.commit = c
		if t.mach, err = commitMachine(c); err != nil {
			return err
		}
		if err := e.chooseBranch(ctx, s, r, q, res, t); err != nil {
			return err
		}
		if c.Kind == branches.KindDisk {
			f, err := e.layerOf(ctx, s, c, tmp.path("disk.ext4"))
			if err != nil {
				return err
			}
			defer f.Close()
			return cloneFile(ctx, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), t.layer, 0o600)
		}
		d, err := e.ensureDump(ctx, s, c)
		if err != nil {
			return err
		}
		t.from = source{commit: c.ID, dump: d, saved: *t.mach.VMM}
		return cloneFile(ctx, d.layer(), t.layer, 0o600)
	})
}

// chooseBranch says what HEAD will be and refuses what cannot be, before
// anything has been touched.
func (e *Local) chooseBranch(ctx context.Context, s *branches.Store, r *record, q CheckoutRequest, res branches.Resolved, t *target) error {
	if q.NewBranch != "" {
		_, err := s.Ref(ctx, branches.BranchRef(q.NewBranch))
		if err == nil {
			return busy("choose another name, or check the branch out without -b", "branch %s exists already", q.NewBranch)
		}
		if !errors.Is(err, branches.ErrNotFound) {
			return err
		}
		t.branch = q.NewBranch
		return nil
	}
	if res.Branch == "" {
		return nil
	}
	id, name, err := e.checkedOut(ctx, s, res.Branch)
	if err != nil {
		return err
	}
	if id != "" && id != r.ID {
		return busy(fmt.Sprintf("make a branch of your own: sietch checkout -b NEW %s %s", r.Name, res.Branch),
			"branch %s is checked out in sandbox %s", res.Branch, name)
	}
	t.branch = res.Branch
	return nil
}

// swap replaces machine and disk. When the new machine does not come up, the
// old state is put back.
func (e *Local) swap(ctx context.Context, r *record, t *target, saved *branches.Commit) error {
	old := *r
	swapped := false
	p, err := e.plumber()
	if err != nil {
		return err
	}
	if err := e.endMachine(ctx, r); err != nil {
		return err
	}
	// The network stays and forgets its connections: what the restored guest
	// believes open breaks at once instead of hanging.
	if old.Handle != nil {
		if err := p.Cut(ctx, r.ID); err != nil && !errors.Is(err, netplumb.ErrNotFound) {
			return fmt.Errorf("cut connections of %s: %w", r.Name, err)
		}
	}
	// One step, so that a kill leaves the sandbox with the one disk or the other.
	if err = exchange(t.layer, e.layer(r.ID)); err == nil {
		swapped = true
		r.Machine = t.mach
		r.Machine.NetworkMode = r.Network.Mode
		if err = e.start(ctx, r, t.from); err == nil {
			return nil
		}
	}
	// Back to what it was, on a context that outlives the caller's.
	ctx = context.WithoutCancel(ctx)
	generation := r.Memory.Generation
	*r = old
	r.Memory.Generation, r.Handle, r.Want = generation, nil, wantStopped
	if swapped {
		if rerr := exchange(t.layer, e.layer(r.ID)); rerr != nil {
			return errors.Join(err, fmt.Errorf("put back disk of %s: %w", r.Name, rerr))
		}
	}
	var back source
	switch {
	case old.Handle == nil:
		return errors.Join(err, e.save(r))
	case saved != nil && saved.Kind == branches.KindFull:
		back = source{commit: saved.ID, dump: e.dump(saved.ID), saved: *old.VMM}
	}
	if berr := e.start(ctx, r, back); berr != nil {
		r.Fault = "a checkout failed, and so did going back"
		return errors.Join(err, fmt.Errorf("go back to the state before: %w", berr), e.save(r))
	}
	return errors.Join(fmt.Errorf("check out (the sandbox is as it was): %w", err), e.save(r))
}

// exchange swaps two files.
func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}

// moveHead notes the checkout in the store.
func (e *Local) moveHead(ctx context.Context, s *branches.Store, r *record, q CheckoutRequest, t *target, saved *branches.Commit) error {
	var tx branches.Update
	if q.NewBranch != "" {
		tx.Refs = append(tx.Refs, branches.RefUpdate{Name: branches.BranchRef(q.NewBranch), New: t.commit.ID})
	}
	head := branches.Head{Branch: t.branch}
	if t.branch == "" {
		head.Commit = t.commit.ID
	}
	tx.Heads = append(tx.Heads, branches.HeadUpdate{Sandbox: r.ID, Head: head, Commit: t.commit.ID,
		Reflog: []branches.ReflogEntry{{Commit: t.commit.ID, Action: "checkout", Message: "moving to " + q.Ref}}})
	if err := s.Update(ctx, tx); err != nil {
		return err
	}
	r.Head = recordHead{Branch: t.branch, Commit: t.commit.ID}
	return nil
}
