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
	if err := ValidateName("sandbox", q.Name); err != nil {
		return Sandbox{}, err
	}
	if q.NewBranch != "" {
		if err := ValidateName("branch", q.NewBranch); err != nil {
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
	if err := e.loadable(ctx, t.from); err != nil {
		return Sandbox{}, err
	}
	var saved *branches.Commit
	if !q.NoSave {
		saved, _, err = e.record(ctx, r, CommitRequest{Name: r.Name, DiskOnly: r.Handle == nil,
			Message: fmt.Sprintf("saved before checkout of %s", q.Ref)}, autosave)
		if err != nil {
			return Sandbox{}, fmt.Errorf("save the present state of %s: %w", r.Name, err)
		}
	}
	r.Swap = &swap{Commit: t.commit.ID, Ref: q.Ref, Branch: t.branch, NewBranch: q.NewBranch != "", Generation: r.Memory.Generation}
	if err := e.save(r); err != nil {
		return Sandbox{}, hostError(err)
	}
	if err := e.swap(ctx, r, t, saved); err != nil {
		return Sandbox{}, err
	}
	if err := e.swapped(ctx, r); err != nil {
		return Sandbox{}, err
	}
	return e.view(ctx, r), nil
}

// swap is a checkout from the moment on at which the present state is dispensable:
// saved, or not wanted. One that is cut off is completed, not taken back, because
// the machine that was there is the first thing to go.
type swap struct {
	Commit    branches.Hash `json:"commit"`
	Ref       string        `json:"ref"` // as it was asked for
	Branch    string        `json:"branch,omitempty"`
	NewBranch bool          `json:"new_branch,omitempty"`
	// Generation is that of the machine to be replaced.
	Generation int `json:"generation"`
}

// finishSwap completes the checkout that a killed command left in a locked
// record. What stands in its way leaves the sandbox stopped and says so.
func (e *Local) finishSwap(ctx context.Context, r *record) error {
	if alive(r) && r.Memory.Generation == r.Swap.Generation {
		r.Swap = nil // nothing had happened yet
		return e.save(r)
	}
	err := e.redoSwap(ctx, r)
	if err == nil || ctx.Err() != nil {
		return err
	}
	e.log.Warn("complete a checkout that was cut off", "sandbox", r.Name, "commit", r.Swap.Commit, "err", err)
	r.Fault, r.Swap = fmt.Sprintf("a checkout was cut off and could not be completed: %v", err), nil
	return errors.Join(e.tearDown(ctx, r), e.save(r))
}

func (e *Local) redoSwap(ctx context.Context, r *record) error {
	dumps, err := e.lockDumps(ctx)
	if err != nil {
		return err
	}
	defer dumps.unlock()
	t, err := e.makeTarget(ctx, func(s *branches.Store, t *target) (err error) {
		t.commit, err = s.Commit(ctx, r.Swap.Commit)
		return err
	})
	if err != nil {
		return err
	}
	defer t.tmp.remove()
	if err := e.endMachine(ctx, r); err != nil {
		return err
	}
	if err := e.become(ctx, r, t); err != nil {
		return err
	}
	return e.swapped(ctx, r)
}

// swapped notes a checkout whose machine runs.
func (e *Local) swapped(ctx context.Context, r *record) error {
	if err := e.withStore(ctx, func(s *branches.Store) error { return e.moveHead(ctx, s, r) }); err != nil {
		return err
	}
	ref := r.Swap.Ref
	r.Swap = nil
	if err := e.save(r); err != nil {
		return hostError(err)
	}
	e.emit(Event{Type: "sandbox.checkout", Sandbox: r.Name, Commit: r.Head.Commit.String(), Ref: ref})
	return nil
}

// target is a commit made ready to become a sandbox's present state.
type target struct {
	tmp    *scratch
	commit *branches.Commit
	mach   machine
	branch string // HEAD attaches to it; empty: detached
	from   source
	layer  string // our own clone of its layer
	// swapped: layer is the sandbox's former one, and the sandbox has the clone.
	swapped bool
}

func (e *Local) checkoutTarget(ctx context.Context, r *record, q CheckoutRequest) (*target, error) {
	return e.makeTarget(ctx, func(s *branches.Store, t *target) error {
		c, res, err := e.resolve(ctx, s, q.Ref)
		if err != nil {
			return err
		}
		t.commit = c
		return e.chooseBranch(ctx, s, r, q, res, t)
	})
}

// makeTarget makes the commit that choose sets ready.
func (e *Local) makeTarget(ctx context.Context, choose func(*branches.Store, *target) error) (t *target, err error) {
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
		if err := choose(s, t); err != nil {
			return err
		}
		c := t.commit
		if t.mach, err = commitMachine(c); err != nil {
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
		if err := e.refuseTaken(ctx, s, q.NewBranch); err != nil {
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
	old.Swap = nil
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
	if err = e.become(ctx, r, t); err == nil {
		return nil
	}
	// Back to what it was, on a context that outlives the caller's.
	ctx = context.WithoutCancel(ctx)
	generation := r.Memory.Generation
	*r = old
	r.Memory.Generation, r.Handle, r.Want = generation, nil, wantStopped
	if t.swapped {
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

// become gives a sandbox without a machine the disk and the machine of a target.
func (e *Local) become(ctx context.Context, r *record, t *target) error {
	// One step, so that a kill leaves the sandbox with the one disk or the other.
	if err := exchange(t.layer, e.layer(r.ID)); err != nil {
		return err
	}
	t.swapped = true
	r.Machine = t.mach
	r.Machine.NetworkMode = r.Network.Mode
	return e.start(ctx, r, t.from)
}

// exchange swaps two files.
func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}

// moveHead notes the checkout in the store.
func (e *Local) moveHead(ctx context.Context, s *branches.Store, r *record) error {
	w := r.Swap
	var tx branches.Update
	if w.NewBranch {
		// A checkout that is done again may find its own branch.
		at, err := s.Ref(ctx, branches.BranchRef(w.Branch))
		if errors.Is(err, branches.ErrNotFound) || err == nil && at.Commit != w.Commit {
			tx.Refs = append(tx.Refs, branches.RefUpdate{Name: branches.BranchRef(w.Branch), New: w.Commit})
		} else if err != nil {
			return err
		}
	}
	head := branches.Head{Branch: w.Branch}
	if w.Branch == "" {
		head.Commit = w.Commit
	}
	tx.Heads = append(tx.Heads, branches.HeadUpdate{Sandbox: r.ID, Head: head, Commit: w.Commit,
		Reflog: []branches.ReflogEntry{{Commit: w.Commit, Action: "checkout", Message: "moving to " + w.Ref}}})
	if err := s.Update(ctx, tx); err != nil {
		return err
	}
	r.Head = recordHead{Branch: w.Branch, Commit: w.Commit}
	return nil
}
