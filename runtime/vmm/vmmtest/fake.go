package vmmtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// Fake is a driver without virtual hardware. Its machines are processes that
// map the memory file privately and count in it (package counter), write disks
// and logs, and can be paused, saved and restored, all as the contract says.
//
// The process is the test binary itself, started anew: importing this package
// is all that is needed for that.
type Fake struct {
	// LaunchError, when set, is asked before each launch; its error is
	// returned in its place.
	LaunchError func(vmm.Spec) error
	// CounterBytes is how much memory machines count in; 0 means 1 MiB.
	CounterBytes int
}

var _ vmm.Driver = (*Fake)(nil)

const (
	fakeName   = "fake"
	fakeEnv    = "SIETCH_VMMTEST_FAKE"
	fakeSpec   = "fake.json"  // in the run directory
	fakeSocket = "fake.sock"  // likewise
	fakeLog    = "vmm.log"    // likewise
	fakeState  = "fake.state" // in a saved state
)

// Name is "fake".
func (f *Fake) Name() string { return fakeName }

// Identity is the same on every host.
func (f *Fake) Identity(ctx context.Context) (vmm.Identity, error) {
	return vmm.Identity{Driver: fakeName, Version: "1.0", Machine: "process", Accel: vmm.TCG, CPU: "none"}, ctx.Err()
}

// Loadable accepts what a Fake has saved.
func (f *Fake) Loadable(ctx context.Context, saved vmm.Identity) error {
	here, err := f.Identity(ctx)
	if err != nil {
		return err
	}
	return vmm.CheckIdentity(saved, here, func(v string) string { return v })
}

// fakeStart is what a fake's process is told.
type fakeStart struct {
	Spec         vmm.Spec
	CounterBytes int
}

// Launch starts a process that counts.
func (f *Fake) Launch(ctx context.Context, s vmm.Spec) (_ vmm.Machine, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("launch machine %s: %w", s.ID, err)
		}
	}()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if f.LaunchError != nil {
		if err := f.LaunchError(s); err != nil {
			return nil, err
		}
	}
	id, err := f.Identity(ctx)
	if err != nil {
		return nil, err
	}
	shape, err := vmm.ShapeOf(s, id)
	if err != nil {
		return nil, err
	}
	if s.Restore != nil {
		if err := shape.CheckSaved(*s.Restore, func(v string) string { return v }); err != nil {
			return nil, err
		}
	}
	if err := shape.Write(s.RunDir); err != nil {
		return nil, err
	}
	start := fakeStart{Spec: s, CounterBytes: f.CounterBytes}
	if start.CounterBytes == 0 {
		start.CounterBytes = 1 << 20
	}
	data, err := json.Marshal(start)
	if err != nil {
		return nil, err
	}
	told := filepath.Join(s.RunDir, fakeSpec)
	if err := os.WriteFile(told, data, 0o600); err != nil {
		return nil, err
	}
	log := filepath.Join(s.RunDir, fakeLog)
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(s.RunDir, fakeSocket), Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	socket, err := listener.File()
	if err = errors.Join(err, listener.Close()); err != nil {
		return nil, err
	}
	defer socket.Close()

	var p *process.Process
	err = process.InNetNS(s.NetNS, func() error {
		cmd := exec.Command("/proc/self/exe", told)
		cmd.Env = append(append(os.Environ(), process.Environ(s.RunDir)...), fakeEnv+"=1")
		cmd.Stdout, cmd.Stderr = out, out
		cmd.ExtraFiles = []*os.File{socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		var err error
		if p, err = process.Adopt(cmd, log); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m := &fakeMachine{proc: p, shape: shape}
	if m.handle, err = p.Handle(); err == nil {
		m.handle.Driver, m.handle.RunDir, m.handle.MemoryFile = fakeName, s.RunDir, s.MemoryFile
		_, err = m.ask(ctx, fakeRequest{Do: "status"}) // answered once the memory is mapped
	}
	if err != nil {
		return nil, errors.Join(process.WithLastWords(err, log), p.Kill())
	}
	return m, nil
}

// Attach adopts a machine.
func (f *Fake) Attach(ctx context.Context, h vmm.Handle) (vmm.Machine, error) {
	if h.Driver != fakeName {
		return nil, fmt.Errorf("attach to machine: its driver is %q, not %q", h.Driver, fakeName)
	}
	p, err := process.Find(h, filepath.Join(h.RunDir, fakeLog))
	if err != nil {
		return nil, fmt.Errorf("attach to machine of process %d: %w", h.PID, err)
	}
	shape, err := vmm.ReadShape(h.RunDir)
	if err != nil {
		return nil, errors.Join(err, p.Release())
	}
	return &fakeMachine{proc: p, shape: shape, handle: h}, nil
}

// fakeMachine is the launcher's side of a fake's process.
type fakeMachine struct {
	proc   *process.Process
	shape  vmm.Shape
	handle vmm.Handle
	mu     sync.Mutex
}

var _ vmm.Machine = (*fakeMachine)(nil)

// fakeRequest is one line on the socket; fakeAnswer the line that answers it.
type fakeRequest struct{ Do, Dir string }

type fakeAnswer struct {
	Paused  bool
	Error   string
	IsState bool // the error is vmm.ErrState
}

func (m *fakeMachine) ask(ctx context.Context, r fakeRequest) (a fakeAnswer, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return a, err
	}
	defer func() {
		if err != nil && m.proc.Ending() {
			err = errors.Join(vmm.ErrGone, err)
		}
		if err != nil {
			err = fmt.Errorf("%s machine of process %d: %w", r.Do, m.handle.PID, err)
		}
	}()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(m.handle.RunDir, fakeSocket))
	if err != nil {
		return a, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return a, err
	}
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&a); err != nil {
		return a, errors.Join(ctx.Err(), err)
	}
	switch {
	case a.IsState:
		return a, vmm.ErrState
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (m *fakeMachine) Handle() vmm.Handle     { return m.handle }
func (m *fakeMachine) Identity() vmm.Identity { return m.shape.Identity }
func (m *fakeMachine) Done() <-chan struct{}  { return m.proc.Done() }
func (m *fakeMachine) Err() error             { return m.proc.Err() }
func (m *fakeMachine) Kill() error            { return m.proc.Kill() }
func (m *fakeMachine) Close() error           { return m.proc.Release() }

func (m *fakeMachine) Pause(ctx context.Context) error {
	_, err := m.ask(ctx, fakeRequest{Do: "pause"})
	return err
}

func (m *fakeMachine) Resume(ctx context.Context) error {
	_, err := m.ask(ctx, fakeRequest{Do: "resume"})
	return err
}

func (m *fakeMachine) Paused(ctx context.Context) (bool, error) {
	a, err := m.ask(ctx, fakeRequest{Do: "status"})
	return a.Paused, err
}

func (m *fakeMachine) SaveDevices(ctx context.Context, dir string) error {
	if _, err := m.ask(ctx, fakeRequest{Do: "save", Dir: dir}); err != nil {
		return err
	}
	return m.shape.Write(dir)
}

// Shutdown is obeyed at once: a counting process has nothing to finish.
func (m *fakeMachine) Shutdown(ctx context.Context) error {
	if _, err := m.ask(ctx, fakeRequest{Do: "power off"}); err != nil && !errors.Is(err, vmm.ErrGone) && ctx.Err() == nil {
		return err
	}
	select {
	case <-m.proc.Done():
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), m.proc.Kill())
	}
}
