package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// lookTimeout bounds what a look at a guest may take: ps must not hang because
// one guest does.
const lookTimeout = 500 * time.Millisecond

// List returns the sandboxes, oldest first; without all, those that run.
func (e *Local) List(ctx context.Context, all bool) ([]Sandbox, error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	records, err := e.records()
	if err != nil {
		return nil, err
	}
	list := make([]Sandbox, len(records))
	var wg sync.WaitGroup
	for i, r := range records {
		wg.Go(func() { list[i] = e.view(ctx, e.completed(ctx, r)) })
	}
	wg.Wait()
	kept := list[:0]
	for i, s := range list {
		switch {
		case records[i].Phase == removing, e.abandoned(records[i]):
		case all, s.State == Running, s.State == Paused, records[i].Swap != nil:
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// Inspect returns one sandbox, whatever its state.
func (e *Local) Inspect(ctx context.Context, name string) (Sandbox, error) {
	if err := e.readable(); err != nil {
		return Sandbox{}, err
	}
	r, err := e.find(name)
	if err != nil {
		return Sandbox{}, err
	}
	return e.view(ctx, e.completed(ctx, r)), nil
}

// view is a record as the outside sees it, with a look at process and guest.
func (e *Local) view(ctx context.Context, r *record) Sandbox {
	s := Sandbox{
		Name: r.Name, ID: r.ID,
		Image:       r.Machine.Image.Name,
		Head:        Head{Branch: r.Head.Branch},
		Network:     r.Network.Mode,
		Ports:       r.Network.Ports,
		CPUs:        r.Machine.CPUs,
		MemoryBytes: r.Machine.MemoryBytes,
		DiskBytes:   r.Machine.DiskBytes,
		Labels:      maps.Clone(r.Labels),
		Created:     r.Created,
		Dir:         e.sandbox(r.ID),
		Reason:      r.Fault,
		Expires:     r.Expires,

		CPULimit: r.Machine.CPULimit, MemoryLimitBytes: r.Machine.MemoryLimitBytes,
	}
	if s.Ports == nil {
		s.Ports = []Port{}
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if !r.Head.Commit.IsZero() {
		s.Head.Commit = r.Head.Commit.String()
	}
	if r.Network.Addr.IsValid() && r.Network.Mode != NetworkNone {
		s.IP = r.Network.Addr.String()
	}
	if r.VMM != nil {
		s.VMM, s.Accel = r.VMM.Driver, string(r.VMM.Accel)
	}
	s.State, s.Reason = e.stateOf(r)
	if s.State == Running || s.State == Paused {
		s.PID = r.Handle.PID
	}
	if s.State == Running {
		var answers bool
		if s.Main, answers = e.mainOf(ctx, r); !answers && e.stalled(ctx, r) && !e.goOn(ctx, r) {
			s.State, s.Reason = Paused, stalledReason
		}
	}
	return s
}

// stateOf says what a sandbox is doing, by its process rather than by what was
// last asked for.
func (e *Local) stateOf(r *record) (State, string) {
	switch {
	case alive(r) && r.Want == wantPaused:
		return Paused, ""
	case alive(r):
		return Running, ""
	case r.Fault != "":
		return Failed, r.Fault
	case r.Want == wantStopped:
		return Stopped, ""
	case r.Phase == creating:
		return Stopped, "it is being created"
	case r.Swap != nil:
		return Stopped, "a checkout is under way"
	case r.Handle != nil && r.Handle.BootID != bootID():
		return Stopped, "the host was restarted"
	case e.poweredOff(r):
		return Stopped, "the guest powered itself off"
	}
	return Failed, "its virtual machine ended without being asked"
}

// powerOffLine is what the guest init says last (guestinit/boot).
const powerOffLine = "sietch: power off"

func (e *Local) poweredOff(r *record) bool {
	f, err := os.Open(filepath.Join(e.sandbox(r.ID), "console.log"))
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false
	}
	// Near the end, and not what an earlier machine of this sandbox said.
	tail := make([]byte, max(0, min(512, st.Size()-r.ConsoleBytes)))
	n, _ := f.ReadAt(tail, st.Size()-int64(len(tail)))
	return bytes.Contains(tail[:n], []byte(powerOffLine))
}

// mainOf asks the guest for its main process; a guest that does not say is
// shown as having none running.
func (e *Local) mainOf(ctx context.Context, r *record) (m Main, answers bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c, err := e.line(r)
	if err != nil {
		return Main{}, false
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return Main{}, false
	}
	return Main{Running: st.Main.Running, ExitCode: st.Main.ExitCode}, true
}

// stalledReason is why a VMM stops a guest that nobody asked it to stop.
const stalledReason = "its VMM stopped it, most likely because the host's disk was full: it goes on by itself once some is free"

// stalled asks the VMM of a guest that does not answer whether it stands still.
func (e *Local) stalled(ctx context.Context, r *record) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	m, err := e.adopt(ctx, r)
	if err != nil {
		return false
	}
	defer m.Close()
	if unix.Access(e.pauseMark(r.ID), unix.F_OK) == nil {
		return false // by a commit
	}
	paused, err := m.Paused(ctx)
	return err == nil && paused
}

// roomToGoOn is what a disk must have free for a guest to go on that stopped for
// want of it: less would stop it again at once.
const roomToGoOn = 16 << 20

// goOn lets a stalled guest run when its disk has room again. One that another
// command holds is left to that.
func (e *Local) goOn(ctx context.Context, r *record) bool {
	lock, err := tryLock(filepath.Join(e.sandbox(r.ID), "lock"), unix.LOCK_EX)
	if err != nil {
		return false
	}
	defer lock.unlock()
	now, err := e.load(r.ID)
	return err == nil && e.goOnLocked(ctx, now)
}

// goOnLocked is goOn for who holds the sandbox.
func (e *Local) goOnLocked(ctx context.Context, r *record) bool {
	if r.Want != wantRunning {
		return false
	}
	if free, err := freeBytes(e.sandbox(r.ID)); err != nil || free < roomToGoOn {
		return false
	}
	err := e.onMachine(ctx, r, func(m vmm.Machine) error { return m.Resume(ctx) })
	if err != nil {
		e.log.Warn("resume a guest that a full disk stopped", "sandbox", r.Name, "err", err)
	}
	return err == nil
}

// commitView is a stored commit as the outside sees it.
func commitView(c *branches.Commit) Commit {
	v := Commit{
		ID:      c.ID.String(),
		Parents: []string{},
		Branch:  c.Branch,
		Sandbox: c.Sandbox,
		Image:   c.Image.Name,
		Message: c.Message,
		Author:  c.Author,
		Created: c.Created,
		Labels:  maps.Clone(c.Labels),
		Kind:    string(c.Kind),
		Refs:    []string{},
		Disk: CommitDisk{
			SizeBytes:    c.Disk.SizeBytes,
			ChangedBytes: c.Stats.DiskChangedBytes,
			StoredBytes:  c.Stats.DiskStoredBytes,
		},
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	for _, p := range c.Parents {
		v.Parents = append(v.Parents, p.String())
	}
	if c.Memory != nil {
		v.Memory = CommitMemory{
			SizeBytes:     c.Memory.SizeBytes,
			ResidentBytes: c.Stats.MemoryResidentBytes,
			ChangedBytes:  c.Stats.MemoryChangedBytes,
			StoredBytes:   c.Stats.MemoryStoredBytes,
		}
	}
	return v
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
