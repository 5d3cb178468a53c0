package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// Names in a run directory.
const (
	monitorName = "qmp.sock"
	logName     = "vmm.log" // QEMU's own output
)

// endingTime is what a process that fails to start is given to be gone.
const endingTime = time.Second

// Launch starts a machine.
func (d *Driver) Launch(ctx context.Context, s vmm.Spec) (_ vmm.Machine, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("launch machine %s: %w", s.ID, err)
		}
	}()
	if err := check(s); err != nil {
		return nil, err
	}
	h, err := d.findHost(ctx)
	if err != nil {
		return nil, err
	}
	sh, err := vmm.ShapeOf(s, h.identity())
	if err != nil {
		return nil, err
	}
	if s.Restore != nil {
		if err := sh.CheckSaved(*s.Restore, minorVersion); err != nil {
			return nil, err
		}
	}
	if err := sh.Write(s.RunDir); err != nil {
		return nil, err
	}
	p, err := start(ctx, s, h)
	if err != nil {
		return nil, err
	}
	m := &machine{proc: p, shape: sh, log: d.opts.Logger}
	if m.handle, err = p.Handle(); err == nil {
		m.handle.Driver, m.handle.RunDir, m.handle.MemoryFile = driverName, s.RunDir, s.MemoryFile
		err = m.becomes(ctx, stateAfterLaunch(s))
	}
	if err == nil {
		return m, nil
	}
	if ctx.Err() == nil {
		// A connection breaks a moment before the process can be waited for, and
		// what QEMU said itself is better than how its end was noticed.
		select {
		case <-p.Done():
			if p.Err() != nil {
				return nil, p.Err()
			}
		case <-time.After(endingTime):
		}
		err = process.WithLastWords(err, m.logPath())
	}
	return nil, errors.Join(err, p.Kill())
}

func stateAfterLaunch(s vmm.Spec) string {
	if s.Restore != nil {
		return "paused"
	}
	return "running"
}

// check is Spec.Validate and what only QEMU cannot do.
func check(s vmm.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	devices := len(s.Disks)
	if s.NIC != nil {
		devices++
	}
	if devices > maxDevices {
		return fmt.Errorf("%d disks and cards are asked for, %d fit", devices, maxDevices)
	}
	return nil
}

// start runs QEMU, detached from this process: in a session of its own and with
// nothing inherited but what it needs.
func start(ctx context.Context, s vmm.Spec, h *findings) (_ *process.Process, err error) {
	var files inherited
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	var fd descriptors
	// The socket is there and listens before QEMU runs, so that connecting needs
	// no polling, and ends at once when QEMU does.
	monitor, err := listen(filepath.Join(s.RunDir, monitorName))
	if err != nil {
		return nil, err
	}
	fd.monitor = files.add(monitor)
	if s.Restore != nil {
		state, err := os.Open(filepath.Join(s.Restore.Dir, devicesName))
		if err != nil {
			return nil, fmt.Errorf("open saved device state: %w", err)
		}
		fd.state = files.add(state)
	}
	log := filepath.Join(s.RunDir, logName)
	output, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of QEMU: %w", err)
	}
	defer output.Close()

	attr := &syscall.SysProcAttr{Setsid: true}
	if s.Jail != nil {
		if err := os.Mkdir(jailRoot(s.RunDir), 0o555); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make root directory of QEMU: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var cmd *exec.Cmd
	err = process.InNetNS(s.NetNS, func() error {
		if s.NIC != nil {
			tap, err := process.OpenTap(s.NIC.Tap)
			if err != nil {
				return err
			}
			fd.tap = files.add(tap)
		}
		cmd = exec.Command(h.binary, arguments(s, *h, fd)...)
		cmd.Dir = "/"
		cmd.Env = process.Environ(s.RunDir)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.ExtraFiles = files
		cmd.SysProcAttr = attr
		return cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	p, err := process.Adopt(cmd, log)
	if err != nil {
		return nil, err
	}
	if s.Jail != nil {
		// QEMU starts up meanwhile. Nothing of the guest runs before the monitor has
		// been asked.
		if err := p.Confine(s.Jail.Cgroups); err != nil {
			return nil, errors.Join(err, p.Kill())
		}
	}
	return p, nil
}

// listen makes the monitor's socket. A stale one of an earlier launch is removed.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make monitor socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	return f, errors.Join(err, l.Close())
}

// stateSteps are the run states a machine passes on the way to another one.
var stateSteps = map[string][]string{
	"running": {"prelaunch"},
	"paused":  {"prelaunch", "inmigrate", "postmigrate", "finish-migrate"},
}

// becomes waits until the machine is in a run state.
func (m *machine) becomes(ctx context.Context, want string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.monitor(ctx, func(q *qmp) error {
		for wait := 100 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
			s, err := q.status(ctx)
			if err != nil {
				return err
			}
			if s.Status == want {
				return nil
			}
			known := false
			for _, step := range stateSteps[want] {
				known = known || step == s.Status
			}
			if !known {
				return fmt.Errorf("machine is %s, want %s", s.Status, want)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
		}
	})
}
