package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// machine is one QEMU process.
type machine struct {
	proc   *process.Process
	shape  vmm.Shape
	handle vmm.Handle
	log    *slog.Logger

	mu     sync.Mutex // serializes operations
	line   *qmp       // to the monitor, kept for lingerTime
	linger *time.Timer
	// stopped: paused over this line. As long as it is held, nobody else can
	// talk to the monitor and let the machine go.
	stopped bool
}

var _ vmm.Machine = (*machine)(nil)

// Attach adopts a machine launched by this or another process.
func (d *Driver) Attach(ctx context.Context, h vmm.Handle) (vmm.Machine, error) {
	p, sh, err := process.Attach(h, driverName, logName)
	if err != nil {
		return nil, err
	}
	return &machine{proc: p, shape: sh, handle: h, log: d.opts.Logger}, nil
}

func (m *machine) Handle() vmm.Handle     { return m.handle }
func (m *machine) Identity() vmm.Identity { return m.shape.Identity }
func (m *machine) Done() <-chan struct{}  { return m.proc.Done() }
func (m *machine) Err() error             { return m.proc.Err() }
func (m *machine) Kill() error            { return m.proc.Kill() }

func (m *machine) logPath() string { return filepath.Join(m.handle.RunDir, logName) }

// lingerTime is how long a connection is kept for the next operation. The steps
// of a commit follow each other under a pause, where each new connection would
// cost two answers of QEMU; another process waits no longer than this.
const lingerTime = 100 * time.Millisecond

// monitor runs f with a connection to QEMU. m.mu is held. A machine that ends
// meanwhile gives vmm.ErrGone.
func (m *machine) monitor(ctx context.Context, f func(*qmp) error) error {
	err := m.proc.During(ctx, func(ctx context.Context) (err error) {
		if m.line != nil && !m.linger.Stop() {
			err = m.hangUp() // its time is up, the timer only waits for m.mu
		}
		if m.line == nil && err == nil {
			m.line, err = dialQMP(ctx, filepath.Join(m.handle.RunDir, monitorName))
		}
		if err == nil {
			err = f(m.line)
		}
		return err
	})
	var answered *qmpError
	if err != nil && !errors.As(err, &answered) {
		// The answer to what was asked may still come: of no use any more.
		err = errors.Join(err, m.hangUp())
	}
	if line := m.line; line != nil {
		m.linger = time.AfterFunc(lingerTime, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.line == line {
				m.hangUp()
			}
		})
	}
	return err
}

// hangUp gives the connection up. m.mu is held.
func (m *machine) hangUp() error {
	if m.line == nil {
		return nil
	}
	if m.linger != nil {
		m.linger.Stop()
	}
	line := m.line
	m.line, m.stopped = nil, false
	return line.Close()
}

// Close gives up connection and process handle; the machine runs on.
func (m *machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.hangUp(), m.proc.Release())
}

func (m *machine) failed(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s machine of process %d: %w", verb, m.handle.PID, err)
}

// Pause stops the CPUs. QEMU drains and flushes disks while the guest already
// stands still, so what the host has not written yet is written first.
func (m *machine) Pause(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed("pause", m.monitor(ctx, func(q *qmp) error {
		if m.stopped {
			return nil
		}
		m.flushDisks(ctx, q)
		err := q.run(ctx, "stop", nil, nil, nil) // of a paused machine: nothing
		m.stopped = err == nil
		return err
	}))
}

// flushDisks writes the dirty pages of the disk files, with the guest running.
// It only makes the flush that follows shorter, so errors are left to that one.
func (m *machine) flushDisks(ctx context.Context, q *qmp) {
	var blocks []struct {
		Inserted *struct {
			File string `json:"file"`
			RO   bool   `json:"ro"`
		} `json:"inserted"`
	}
	if err := q.run(ctx, "query-block", nil, nil, &blocks); err != nil {
		return
	}
	for _, b := range blocks {
		if b.Inserted == nil || b.Inserted.RO {
			continue
		}
		f, err := os.Open(b.Inserted.File)
		if err != nil {
			m.log.Debug("disk file was not flushed before the pause", "file", b.Inserted.File, "err", err)
			continue
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			m.log.Debug("disk file was not flushed before the pause", "file", b.Inserted.File, "err", err)
		}
		f.Close()
	}
}

// Resume lets the CPUs run.
func (m *machine) Resume(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed("resume", m.monitor(ctx, func(q *qmp) error {
		m.stopped = false
		return q.run(ctx, "cont", nil, nil, nil)
	}))
}

// Paused asks QEMU. A machine that QEMU itself stopped, as it does when a disk
// file cannot grow, is paused too.
func (m *machine) Paused(ctx context.Context) (paused bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err = m.failed("ask", m.monitor(ctx, func(q *qmp) error {
		s, err := q.status(ctx)
		paused = !s.Running
		return err
	}))
	return paused, err
}

// SaveDevices writes QEMU's device state and the machine's description.
func (m *machine) SaveDevices(ctx context.Context, dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed("save devices of", m.monitor(ctx, func(q *qmp) error {
		if !m.stopped {
			s, err := q.status(ctx)
			if err != nil {
				return err
			}
			if s.Running {
				return fmt.Errorf("%w: it is running", vmm.ErrState)
			}
		}
		if err := m.shape.Write(dir); err != nil {
			return err
		}
		// A jailed QEMU can open nothing, so it is given the open file. It drops
		// it after the connection has ended.
		f, err := os.OpenFile(filepath.Join(dir, devicesName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		var set struct {
			ID int `json:"fdset-id"`
		}
		if err := q.run(ctx, "add-fd", nil, f, &set); err != nil {
			return err
		}
		name := fmt.Sprintf("/dev/fdset/%d", set.ID)
		// Not live: QEMU would otherwise give up the disks of a machine that stands
		// still, for another host to take over, and fall over the next save.
		if err := q.run(ctx, "xen-save-devices-state", map[string]any{"filename": name, "live": false}, nil, nil); err != nil {
			return err
		}
		if st, err := f.Stat(); err != nil || st.Size() == 0 {
			return errors.Join(errors.New("QEMU wrote no device state"), err)
		}
		return f.Close()
	}))
}

// Shutdown presses the power button. A paused guest would not notice, so it is
// let go first.
func (m *machine) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	err := m.monitor(ctx, func(q *qmp) error {
		m.stopped = false
		if err := q.run(ctx, "cont", nil, nil, nil); err != nil {
			return err
		}
		return q.run(ctx, "system_powerdown", nil, nil, nil)
	})
	m.mu.Unlock()
	if err != nil && !errors.Is(err, vmm.ErrGone) {
		m.log.Debug("power button was not pressed", "pid", m.handle.PID, "err", err)
	}
	return m.failed("shut down", m.proc.AwaitEnd(ctx))
}
