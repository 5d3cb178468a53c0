package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// errMendedAway: what a killed command left of a sandbox has just been removed.
var errMendedAway = errors.New("half-made")

// mend puts right what a command that was killed left of one locked sandbox.
func (e *Local) mend(ctx context.Context, r *record) error {
	if r.Phase == settled && r.expired(time.Now()) {
		if err := e.destroy(ctx, r); err != nil {
			return fmt.Errorf("remove expired sandbox %s: %w", r.Name, err)
		}
		return &Error{Kind: ErrNotFound, Message: fmt.Sprintf("sandbox %s has expired and been removed", r.Name), Err: errMendedAway}
	}
	if r.Phase != settled {
		if err := e.destroy(ctx, r); err != nil {
			return fmt.Errorf("remove half-made sandbox %s: %w", r.Name, err)
		}
		return &Error{Kind: ErrNotFound, Message: fmt.Sprintf("sandbox %s was left by a command that was killed and has been removed", r.Name), Err: errMendedAway}
	}
	if r.Swap != nil {
		if err := e.finishSwap(ctx, r); err != nil {
			return err
		}
	}
	if r.RunDir != "" && (r.Handle == nil || r.Handle.RunDir != r.RunDir) {
		// Killed between launching a VMM and writing down which.
		if err := e.tearDown(ctx, r); err != nil {
			return err
		}
		r.Fault = "a command that was starting it was killed"
		return e.save(r)
	}
	if r.Handle != nil && !alive(r) {
		// Its machine ended by itself. What is left of it goes, the reason stays.
		state, reason := e.stateOf(r)
		if err := e.tearDown(ctx, r); err != nil {
			return err
		}
		if state == Failed {
			r.Fault = reason
		}
		return e.save(r)
	}
	return e.releasePaused(ctx, r)
}

// completed returns the record after completing a checkout whose command was
// killed. Verbs that only look and take no lock begin with it: a sandbox is not
// to stay half-way until somebody changes it.
func (e *Local) completed(ctx context.Context, r *record) *record {
	if r.Swap == nil {
		return r
	}
	fresh, err := e.mendUnheld(ctx, r.ID)
	if err != nil {
		e.log.Warn("complete a checkout that was cut off", "sandbox", r.Name, "err", err)
	}
	if fresh == nil {
		return r
	}
	return fresh
}

// mendUnheld mends a sandbox and returns its record. Nil: a command that is alive
// holds it, or there is none that can be read, which is for its owner to look at.
func (e *Local) mendUnheld(ctx context.Context, id string) (*record, error) {
	lock, err := tryLock(filepath.Join(e.sandbox(id), "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, nil
	}
	defer lock.unlock()
	r, err := e.load(id)
	if err != nil {
		return nil, nil
	}
	return r, e.mend(ctx, r)
}

// releasePaused lets a guest go on that a killed commit left paused.
func (e *Local) releasePaused(ctx context.Context, r *record) error {
	mark := e.pauseMark(r.ID)
	if _, err := os.Stat(mark); err != nil {
		return nil
	}
	if r.Want == wantRunning && r.Handle != nil {
		m, err := e.adopt(ctx, r)
		if err == nil {
			err = m.Resume(ctx)
			m.Close()
		}
		if err != nil && !errors.Is(err, vmm.ErrGone) {
			return fmt.Errorf("resume %s: %w", r.Name, err)
		}
	}
	return os.Remove(mark)
}

// makeRoom begins what makes sandboxes: names and ports of half-made ones are
// free again. Not to be called with the store open, which removing needs.
func (e *Local) makeRoom(ctx context.Context) error {
	if err := e.prepare(); err != nil {
		return err
	}
	global, err := e.lockSandboxes(ctx)
	if err != nil {
		return err
	}
	defer global.unlock()
	e.reap(ctx)
	return nil
}

// reap removes sandboxes that have expired, and those that a killed command left
// half-made or half-removed.
// It returns how many of the latter. The caller holds lockSandboxes. It does what
// it can: what it cannot is tried again by the next command.
func (e *Local) reap(ctx context.Context) (n int) {
	entries, err := os.ReadDir(e.sandboxes())
	if err != nil {
		return 0
	}
	for _, de := range entries {
		if !de.IsDir() {
			continue
		}
		id := de.Name()
		r, err := e.load(id)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			continue // damaged: for its owner to look at
		}
		if err == nil && r.Phase == settled && !r.expired(time.Now()) {
			continue
		}
		lock, lerr := tryLock(filepath.Join(e.sandbox(id), "lock"), unix.LOCK_EX)
		if lerr != nil {
			continue // its command is alive
		}
		if err != nil {
			err = os.RemoveAll(e.sandbox(id)) // no record: nothing else was made yet, or is any more
		} else if r, err = e.load(id); err == nil && (r.Phase != settled || r.expired(time.Now())) {
			err = e.destroy(ctx, r)
		}
		lock.unlock()
		if err != nil {
			e.log.Warn("remove sandbox", "id", id, "err", err)
			continue
		}
		if r == nil || !r.expired(time.Now()) {
			n++
		}
	}
	return n + e.sweepScratch()
}

// Recover puts right what killed commands left, as the commands that come would:
// it is for whoever has time before them. It returns how many things it removed.
func (e *Local) Recover(ctx context.Context) (removed int, err error) {
	if !exists(e.sandboxes()) {
		return 0, nil
	}
	if err := e.prepare(); err != nil {
		return 0, err
	}
	removed, err = e.sweep(ctx)
	all, rerr := e.records()
	errs := []error{err, rerr}
	for _, r := range all {
		if _, err := e.mendUnheld(ctx, r.ID); err != nil && !errors.Is(err, errMendedAway) {
			errs = append(errs, fmt.Errorf("put %s right: %w", r.Name, err))
		}
	}
	return removed, errors.Join(errs...)
}

// abandoned says whether a sandbox was left half-made by a command that was
// killed: there is nothing in it for anybody, and the next command that makes
// sandboxes removes it.
func (e *Local) abandoned(r *record) bool {
	if r.Phase != creating {
		return false
	}
	lock, err := tryLock(filepath.Join(e.sandbox(r.ID), "lock"), unix.LOCK_EX)
	if err != nil {
		return false
	}
	lock.unlock()
	return true
}

// alive says whether the VMM process of a record runs, without talking to it.
func alive(r *record) bool {
	if r.Handle == nil || r.Handle.BootID != bootID() {
		return false
	}
	began, err := process.StartTime(r.Handle.PID)
	return err == nil && began == r.Handle.StartTime
}

// bootID changes with every start of the host.
var bootID = sync.OnceValue(func() string {
	id, err := process.BootID()
	if err != nil {
		return ""
	}
	return id
})
