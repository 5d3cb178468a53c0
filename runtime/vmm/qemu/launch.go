package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// Names in a run directory.
const (
	monitorName = "qmp.sock"
	logName     = "vmm.log" // QEMU's own output
	pidName     = "pid"
)

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
	sh, err := vmm.NewShape(s, h.identity(), minorVersion)
	if err != nil {
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
		if p.EndsSoon(ctx) && p.Err() != nil {
			return nil, p.Err()
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

// start runs QEMU with the files it needs open.
func start(ctx context.Context, s vmm.Spec, h *findings) (_ *process.Process, err error) {
	var files inherited
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	var fd descriptors
	monitor, err := process.Listen(filepath.Join(s.RunDir, monitorName))
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
	if s.NIC != nil {
		tap, err := process.OpenTap(s.NetNS, s.NIC.Tap)
		if err != nil {
			return nil, err
		}
		fd.tap = files.add(tap)
	}
	log := filepath.Join(s.RunDir, logName)
	output, err := openLog(log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	var jail *process.Jail
	if s.Jail != nil {
		if jail, err = makeJail(s, h); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := exec.Command(h.binary, arguments(s, *h, fd)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = files
	return process.Command{Cmd: cmd, RunDir: s.RunDir, Log: log, NetNS: s.NetNS, Jail: jail}.Start()
}

func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of QEMU: %w", err)
	}
	return f, nil
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
