package cloudhypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// machine is one cloud-hypervisor process.
type machine struct {
	proc   *process.Process
	shape  vmm.Shape
	handle vmm.Handle
	log    *slog.Logger

	mu sync.Mutex // serializes operations
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
func (m *machine) Kill() error            { return m.proc.Kill() }

// Close gives up the process handle; the machine runs on.
func (m *machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc.Release()
}

// Err says why the process ended. A guest that restarts ends it on purpose, and
// that is a clean end: see consolePath.
func (m *machine) Err() error {
	err := m.proc.Err()
	if err != nil && m.restarted() {
		return nil
	}
	return err
}

// restarted reports whether the last that happened to the machine is that its
// guest restarts.
func (m *machine) restarted() bool {
	f, err := os.Open(filepath.Join(m.handle.RunDir, eventsName))
	if err != nil {
		return false
	}
	defer f.Close()
	var last struct{ Source, Event string }
	for events := json.NewDecoder(f); events.Decode(&last) == nil; {
	}
	return last.Source == "vm" && last.Event == "rebooting"
}

func (m *machine) logPath() string { return filepath.Join(m.handle.RunDir, logName) }

// ask runs f, which talks to the VMM. m.mu is held. A machine that ends meanwhile
// gives vmm.ErrGone.
func (m *machine) ask(ctx context.Context, f func(context.Context, api) error) error {
	err := m.proc.During(ctx, func(ctx context.Context) error {
		return f(ctx, api{filepath.Join(m.handle.RunDir, socketName)})
	})
	if err != nil && !errors.Is(err, vmm.ErrGone) && hungUp(err) && m.proc.EndsSoon(ctx) {
		return errors.Join(vmm.ErrGone, err)
	}
	return err
}

// hungUp reports whether the other end of a connection is not there any more.
func hungUp(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// operate is ask for an operation of its own.
func (m *machine) operate(ctx context.Context, verb string, f func(context.Context, api) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed(verb, m.ask(ctx, f))
}

func (m *machine) failed(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s machine of process %d: %w", verb, m.handle.PID, err)
}

// become asks for a transition. That to the state the machine is in already is
// refused, and looking first would cost another answer under every pause.
func become(ctx context.Context, a api, endpoint, state string) error {
	err := a.put(ctx, endpoint, nil)
	var refused *apiError
	if !errors.As(err, &refused) {
		return err
	}
	if is, serr := a.state(ctx); serr != nil || is != state {
		return errors.Join(err, serr)
	}
	return nil
}

// Pause stops the CPUs. cloud-hypervisor waits for what the disks are doing; its
// writes are then in the disk files, as far as this host is concerned.
func (m *machine) Pause(ctx context.Context) error {
	return m.operate(ctx, "pause", func(ctx context.Context, a api) error { return become(ctx, a, "vm.pause", statePaused) })
}

// Resume lets the CPUs run.
func (m *machine) Resume(ctx context.Context) error {
	return m.operate(ctx, "resume", func(ctx context.Context, a api) error { return become(ctx, a, "vm.resume", stateRunning) })
}

// Paused asks the VMM.
func (m *machine) Paused(ctx context.Context) (paused bool, err error) {
	err = m.operate(ctx, "ask", func(ctx context.Context, a api) error {
		state, err := a.state(ctx)
		paused = state == statePaused
		return err
	})
	return paused, err
}

// SaveDevices writes the state of CPUs and devices and the machine's description.
func (m *machine) SaveDevices(ctx context.Context, dir string) error {
	return m.operate(ctx, "save devices of", func(ctx context.Context, a api) error {
		config, state, err := m.snapshot(ctx, a)
		if err != nil {
			return err
		}
		for name, data := range map[string][]byte{configName: config, stateName: state} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				return err
			}
		}
		return m.shape.Write(dir)
	})
}

// snapshotRequest is what vm.snapshot is given.
type snapshotRequest struct {
	DestinationURL string `json:"destination_url"`
}

// snapshot has the VMM write its state and returns it as it is to be kept.
//
// cloud-hypervisor writes config.json, state.json and then all of RAM to a new
// file (v53.0: 40 ms against 2 s for 256 MiB). When there is one of that name it
// refuses, with the first two complete, and that is what is wanted here: RAM is
// copied by others. Should a version do otherwise, the long way is taken.
func (m *machine) snapshot(ctx context.Context, a api) (config, state []byte, err error) {
	own, err := findOwnDir(m.handle.RunDir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if rerr := own.remove(snapshotName); rerr != nil && err == nil {
			err = rerr
		}
	}()
	take := func(refuse bool) ([]byte, []byte, error) {
		if err := own.mkdir(snapshotName); err != nil {
			return nil, nil, err
		}
		if refuse {
			if err := own.create(snapshotName, ramName); err != nil {
				return nil, nil, err
			}
		}
		err := a.put(ctx, "vm.snapshot", snapshotRequest{"file://" + own.path(snapshotName)})
		if err != nil && !(refuse && ramRefused(err)) {
			return nil, nil, err
		}
		return m.readSnapshot(own)
	}
	config, state, err = take(true)
	if err == nil || ctx.Err() != nil {
		return config, state, err
	}
	if is, serr := a.state(ctx); serr != nil {
		return nil, nil, errors.Join(err, serr)
	} else if is != statePaused {
		return nil, nil, fmt.Errorf("%w: it is %s", vmm.ErrState, is)
	}
	m.log.Warn("cloud-hypervisor does not save its state without RAM, saving both", "err", err)
	if rerr := own.roomFor(m.shape.MemoryBytes); rerr != nil {
		return nil, nil, errors.Join(err, rerr)
	}
	return take(false)
}

// readSnapshot reads and checks what the VMM wrote.
func (m *machine) readSnapshot(own own) (config, state []byte, err error) {
	if config, err = own.read(snapshotName, configName); err != nil {
		return nil, nil, fmt.Errorf("saved configuration: %w", err)
	}
	if config, err = withoutPlaces(config, m.shape); err != nil {
		return nil, nil, err
	}
	if state, err = own.read(snapshotName, stateName); err != nil {
		return nil, nil, fmt.Errorf("saved state: %w", err)
	}
	state, err = withoutRAM(state, m.shape)
	return config, state, err
}

// roomFor reports when a dump of RAM does not fit beside the own directory,
// before the VMM has filled the file system that other machines use too.
func (o own) roomFor(bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(o.dir, &fs); err != nil {
		return err
	}
	const spare = 16 << 20
	if free := int64(fs.Bavail) * fs.Bsize; free < bytes+spare {
		return fmt.Errorf("%s has %d MiB free, a dump of RAM needs %d MiB", o.dir, free>>20, (bytes+spare)>>20)
	}
	return nil
}

// Shutdown presses the power button. A paused guest would not notice, so it is
// let go first.
func (m *machine) Shutdown(ctx context.Context) error {
	err := m.operate(ctx, "shut down", func(ctx context.Context, a api) error {
		if err := become(ctx, a, "vm.resume", stateRunning); err != nil {
			return err
		}
		return a.put(ctx, "vm.power-button", nil)
	})
	if err != nil && !errors.Is(err, vmm.ErrGone) {
		m.log.Debug("power button was not pressed", "pid", m.handle.PID, "err", err)
	}
	return m.failed("shut down", m.proc.AwaitEnd(ctx))
}
