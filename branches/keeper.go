package branches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// KeeperOptions for NewKeeper.
type KeeperOptions struct {
	// Store is how the store is opened. Its Wait bounds all that a call waits,
	// for other calls of this process and for other processes.
	Store Options
	// Idle is how long the store stays open after a call; 0: each call opens and
	// closes it.
	Idle time.Duration
}

// Keeper opens a store for one call at a time, in a process that makes many of
// them: between two calls it may stay open, which saves the second one the
// opening, and the first the closing.
//
// A store that is kept is in nobody's way. It goes as soon as another process
// waits for it, and before the next call of this one gets it. It is kept only
// while there is the room that a merge of the index would take, since nothing
// looks after it in between, and only after calls without an error.
type Keeper struct {
	store Options
	// turn has an element while a call, or the guard, has what is below. Those
	// who wait for it get it in their order.
	turn chan struct{}

	idle    time.Duration
	kept    *kept // nil: the store is closed
	guarded bool  // there is a guard
	// gaveWay: the store was last closed while somebody waited for it.
	gaveWay bool

	guards sync.WaitGroup
}

// kept is a store that may stay open.
type kept struct {
	*Store
	waiters waiters
	since   time.Time // the end of its last call
}

const (
	// guardPoll is how often it is looked whether somebody wants the store.
	guardPoll = 5 * time.Millisecond
	// guardChecks is at how many polls one the rest is looked at.
	guardChecks = 20
	// guardSettles is after how much rest an index that was written to is closed
	// and opened anew, so that nobody who wants the store waits while its memtable
	// is written out.
	guardSettles = 250 * time.Millisecond
	// giveWay is how long those who wait have to take a store that was closed for
	// them, before a call of this process queues for it as well. They try every
	// lockPoll, but a busy machine may not let them.
	giveWay = 50 * time.Millisecond
)

// NewKeeper opens nothing yet.
func NewKeeper(o KeeperOptions) *Keeper {
	return &Keeper{store: o.Store, idle: o.Idle, turn: make(chan struct{}, 1)}
}

// Use runs fn with the store open and to itself: there is no other call in this
// process, nor in another. The error is fn's, or why the store could not be opened
// or closed; a [LockError] when the wait was too long. fn must not call Use, nor
// close the store.
func (k *Keeper) Use(ctx context.Context, fn func(*Store) error) (err error) {
	deadline := time.Now().Add(k.store.Wait)
	if err := k.take(ctx, deadline); err != nil {
		return err
	}
	defer k.pass()
	p, err := k.open(ctx, deadline)
	if err != nil {
		return err
	}
	returned := false // and not panicked
	defer func() {
		if returned && err == nil && p.sound() {
			k.keep(p)
			return
		}
		err = errors.Join(err, k.close(p))
	}()
	err = fn(p.Store)
	returned = true
	return err
}

// Close closes the store after the call that has it, and keeps it no more:
// calls that follow open and close it themselves. Idempotent.
func (k *Keeper) Close() error {
	k.turn <- struct{}{}
	k.idle = 0
	var err error
	if p := k.kept; p != nil {
		err = k.close(p)
	}
	k.pass()
	k.guards.Wait()
	return err
}

// take waits for this call's turn.
func (k *Keeper) take(ctx context.Context, deadline time.Time) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("lock store: %w", ctx.Err())
	case <-timer.C:
		return &LockError{Dir: k.store.Dir, PID: os.Getpid(), Command: commandName()}
	}
}

func (k *Keeper) pass() { <-k.turn }

// open returns the store that was kept, or opens it.
func (k *Keeper) open(ctx context.Context, deadline time.Time) (*kept, error) {
	if p := k.kept; p != nil {
		if p.sound() {
			k.kept = nil
			return p, nil
		}
		k.closeIdle(p)
	}
	if k.gaveWay {
		k.gaveWay = false
		if err := k.letOthers(ctx, deadline); err != nil {
			return nil, err
		}
	}
	o := k.store
	o.Wait = max(0, time.Until(deadline))
	return k.openNew(ctx, o)
}

func (k *Keeper) openNew(ctx context.Context, o Options) (*kept, error) {
	s, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &kept{Store: s}
	if k.idle > 0 {
		if p.waiters, err = watchWaiters(s.dir); err != nil {
			s.log.Debug("the store is not kept open", "store", s.dir, "error", err)
		}
	}
	return p, nil
}

// letOthers waits until those who waited have had the time to take the store. A
// call of this process, which knows when it is closed, would always be first.
func (k *Keeper) letOthers(ctx context.Context, deadline time.Time) error {
	w, err := watchWaiters(k.store.Dir)
	if err != nil {
		return nil // Open says what is wrong
	}
	defer w.close()
	if end := time.Now().Add(giveWay); end.Before(deadline) {
		deadline = end
	}
	for time.Now().Before(deadline) {
		if wanted, err := w.any(); err != nil || !wanted {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock store: %w", ctx.Err())
		case <-time.After(guardPoll):
		}
	}
	return nil
}

// keep leaves a store open after a call.
func (k *Keeper) keep(p *kept) {
	p.reserve() // the call may have used it
	p.since = time.Now()
	k.kept = p
	if !k.guarded {
		k.guarded = true
		k.guards.Go(k.guard)
	}
}

// guard closes the store when its time is up, or before when there is a reason.
// It ends when it finds none to guard.
func (k *Keeper) guard() {
	tick := time.NewTicker(guardPoll)
	defer tick.Stop()
	for n := 1; ; n++ {
		<-tick.C
		select {
		case k.turn <- struct{}{}:
		default:
			continue // in use
		}
		if p := k.kept; p != nil {
			rest := time.Since(p.since)
			switch {
			case rest >= k.idle, p.wanted(), n%guardChecks == 0 && !p.sound():
				k.closeIdle(p)
			case rest >= guardSettles && p.index.wrote.Load() && p.sound():
				k.settle(p)
			}
		}
		k.guarded = k.kept != nil
		again := k.guarded
		k.pass()
		if !again {
			return
		}
	}
}

// settle closes a sound store and opens it anew, unless somebody is faster.
func (k *Keeper) settle(p *kept) {
	k.closeIdle(p)
	if k.gaveWay {
		return
	}
	o := k.store
	o.Wait = 0
	next, err := k.openNew(context.Background(), o)
	switch {
	case errors.Is(err, ErrLocked):
	case err != nil:
		p.log.Debug("the store is not kept open", "store", p.dir, "error", err) // the next call says it
	case next.sound():
		next.since = p.since
		k.kept = next
	default:
		k.closeIdle(next)
	}
}

// closeIdle is close where there is nobody to tell. What calls have stored is
// durable without.
func (k *Keeper) closeIdle(p *kept) {
	if err := k.close(p); err != nil {
		p.log.Warn("cannot close an idle store", "store", p.dir, "error", err)
	}
}

func (k *Keeper) close(p *kept) error {
	k.kept = nil
	k.gaveWay, _ = p.waiters.any()
	p.waiters.close()
	if p.moved() {
		return p.abandon()
	}
	return p.Close()
}

// wanted reports whether another process waits for the store, or cannot be seen
// to wait.
func (p *kept) wanted() bool {
	wanted, err := p.waiters.any()
	return wanted || err != nil
}

// sound says that the store may stay open. Where there is too little room, it is
// safe when closed; and opened anew, the index knows that it must not merge.
func (p *kept) sound() bool {
	return !p.wanted() && p.index.opts.roomy && p.needSpace(0) == nil && !p.moved()
}

// moved reports whether the store's directory is no longer the one that was
// opened: it was removed, or another is in its place.
func (p *kept) moved() bool {
	held, err := p.lock.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(filepath.Join(p.dir, lockName))
	return err != nil || !os.SameFile(held, there)
}
