package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// DefaultStopTimeout is what a guest gets to power off.
const DefaultStopTimeout = 10 * time.Second

// Pause stops the CPUs of a sandbox; its memory stays.
func (e *Local) Pause(ctx context.Context, name string) error {
	return e.switched(ctx, name, wantPaused, "sandbox.pause", vmm.Machine.Pause)
}

// Resume lets a paused sandbox run on.
func (e *Local) Resume(ctx context.Context, name string) error {
	return e.switched(ctx, name, wantRunning, "sandbox.resume", vmm.Machine.Resume)
}

// switched brings the CPUs of a sandbox into a state. Doing so again is no event.
func (e *Local) switched(ctx context.Context, name string, to want, event string, verb func(vmm.Machine, context.Context) error) error {
	var was want
	err := e.change(ctx, name, func(r *record) error {
		return e.onMachine(ctx, r, func(m vmm.Machine) error {
			was, r.Want = r.Want, to
			return verb(m, ctx)
		})
	})
	if err == nil && was != to {
		e.emit(Event{Type: event, Sandbox: name})
	}
	return err
}

// Stop powers a sandbox off: politely, then not. Its disk stays.
func (e *Local) Stop(ctx context.Context, q StopRequest) error {
	ran := false
	err := e.change(ctx, q.Name, func(r *record) error {
		if ran = r.Handle != nil; !ran {
			return nil
		}
		if err := e.powerOff(ctx, r, orDefault(q.Timeout, DefaultStopTimeout)); err != nil {
			return err
		}
		return e.tearDown(ctx, r)
	})
	if err == nil && ran {
		e.emit(Event{Type: "sandbox.stop", Sandbox: q.Name})
	}
	return err
}

// Start boots a stopped sandbox on its disk; a paused one goes on.
func (e *Local) Start(ctx context.Context, name string) (Sandbox, error) {
	var out Sandbox
	began, event := time.Now(), ""
	err := e.change(ctx, name, func(r *record) error {
		m, err := e.attach(ctx, r)
		switch {
		case err == nil:
			defer m.Close()
			if r.Want == wantPaused {
				event = "sandbox.resume"
			}
			r.Want = wantRunning
			err = m.Resume(ctx)
		case errors.Is(err, ErrState):
			event = "sandbox.start"
			if err = e.admit(ctx, r.Machine.MemoryBytes); err == nil {
				err = e.tearDown(ctx, r)
			}
			if err == nil {
				err = e.start(ctx, r, source{})
			}
		}
		if err != nil {
			return err
		}
		out = e.view(ctx, r)
		return nil
	})
	out.Timing = &BootTiming{ReadyMS: milliseconds(time.Since(began))}
	if err == nil && event != "" {
		e.emit(Event{Type: event, Sandbox: name})
	}
	return out, err
}

// Remove ends a sandbox and forgets it. Commits made from it stay as long as a
// branch or tag leads to them.
func (e *Local) Remove(ctx context.Context, name string, force bool) error {
	if err := e.prepare(); err != nil {
		return err
	}
	r, lock, err := e.lockSandbox(ctx, name)
	switch {
	case errors.Is(err, errMendedAway):
		return nil
	case force && errors.Is(err, ErrCorrupt):
		return e.removeDamaged(ctx, name)
	case err != nil:
		return err
	}
	defer lock.unlock()
	if alive(r) && !force {
		return busy("stop it first, or use rm -f", "sandbox %s is running", name)
	}
	return e.destroy(ctx, r)
}

// destroy removes a locked sandbox. It can be cut off anywhere and done again.
func (e *Local) destroy(ctx context.Context, r *record) error {
	halfMade := r.Phase == creating
	r.Phase = removing
	if err := e.save(r); err != nil {
		return hostError(err)
	}
	if err := e.tearDown(ctx, r); err != nil {
		return err
	}
	// The layer first: on a full disk the store has no room to forget in without.
	if err := os.Remove(e.layer(r.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostError(err)
	}
	err := e.withStore(ctx, func(s *branches.Store) error { return forgetHead(ctx, s, r.ID) })
	switch {
	case errors.Is(err, branches.ErrNoSpace):
		e.log.Warn("the HEAD of a removed sandbox is left to gc", "sandbox", r.Name, "err", err)
	case err != nil:
		return err
	}
	// The record goes first: a directory without one is a leftover.
	err = errors.Join(os.Remove(e.recordPath(r.ID)), os.RemoveAll(e.sandbox(r.ID)))
	if err == nil && !halfMade {
		e.emit(Event{Type: "sandbox.remove", Sandbox: r.Name})
	}
	return err
}

// removeDamaged is rm -f of a sandbox whose record cannot be read.
func (e *Local) removeDamaged(ctx context.Context, id string) error {
	return e.destroy(ctx, &record{ID: id, Name: id})
}

// change runs fn on the locked record of a sandbox and saves it.
func (e *Local) change(ctx context.Context, name string, fn func(*record) error) error {
	if err := e.prepare(); err != nil {
		return err
	}
	r, lock, err := e.lockSandbox(ctx, name)
	if err != nil {
		return err
	}
	defer lock.unlock()
	if err := fn(r); err != nil {
		return err
	}
	return hostError(e.save(r))
}

func (e *Local) onMachine(ctx context.Context, r *record, fn func(vmm.Machine) error) error {
	m, err := e.attach(ctx, r)
	if err != nil {
		return err
	}
	defer m.Close()
	return fn(m)
}

// powerOff asks the guest and waits; a guest that does not listen is left to
// endMachine.
func (e *Local) powerOff(ctx context.Context, r *record, limit time.Duration) error {
	m, err := e.attach(ctx, r)
	if errors.Is(err, ErrState) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := m.Resume(ctx); err != nil {
		return nil
	}
	c, err := e.dial(r.ID)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Shutdown(ctx); err != nil {
		e.log.Warn("guest was not asked to power off", "sandbox", r.Name, "err", err)
		return nil
	}
	select {
	case <-m.Done():
	case <-ctx.Done():
	}
	return nil
}

// endMachine ends the VMM process, if there is one, and forgets it.
func (e *Local) endMachine(ctx context.Context, r *record) error {
	if r.Handle != nil {
		m, err := e.adopt(ctx, r)
		switch {
		case err == nil:
			err = m.Kill()
			m.Close()
			if err != nil {
				return fmt.Errorf("end virtual machine of %s: %w", r.Name, err)
			}
		case !errors.Is(err, vmm.ErrGone):
			// A VMM that answers nobody is ended all the same.
			p, err := process.Find(*r.Handle, "")
			if err == nil {
				err = p.Kill()
			}
			if err != nil && !errors.Is(err, vmm.ErrGone) {
				return fmt.Errorf("end virtual machine of %s: %w", r.Name, err)
			}
		}
	}
	if r.RunDir != "" {
		if err := process.KillIn(r.RunDir); err != nil {
			return err
		}
		if err := os.RemoveAll(r.RunDir); err != nil {
			return err
		}
	}
	os.Remove(e.pauseMark(r.ID))
	os.Remove(e.trackingPath(r.ID))
	r.Handle, r.VMM, r.RunDir = nil, nil, ""
	r.Memory.Base = branches.Hash{}
	return nil
}

// tearDown ends machine and network; disk and record stay.
func (e *Local) tearDown(ctx context.Context, r *record) error {
	if err := e.endMachine(ctx, r); err != nil {
		return err
	}
	p, err := e.plumber()
	if err != nil {
		return err
	}
	if err := p.Down(ctx, r.ID); err != nil {
		return fmt.Errorf("remove network of %s: %w", r.Name, err)
	}
	if err := jail.RemoveGroup(e.cgroup(r.ID)); err != nil {
		return err
	}
	r.Want = wantStopped
	return nil
}
