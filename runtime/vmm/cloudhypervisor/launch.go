package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// Names in a run directory.
const (
	socketName = "api.sock"
	logName    = "vmm.log"     // cloud-hypervisor's own output
	eventsName = "events.json" // what happened to the machine, as its event monitor tells
)

// ownDir is the part of a run directory that belongs to the VMM's user.
func ownDir(runDir string) string { return filepath.Join(runDir, "vmm") }

// Launch starts a machine.
func (d *Driver) Launch(ctx context.Context, s vmm.Spec) (vmm.Machine, error) {
	m, err := d.launch(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("launch machine %s: %w", s.ID, err)
	}
	return m, nil
}

func (d *Driver) launch(ctx context.Context, s vmm.Spec) (*machine, error) {
	if err := check(s); err != nil {
		return nil, err
	}
	h, err := d.findHost(ctx)
	if err != nil {
		return nil, err
	}
	sh, err := vmm.NewShape(s, h.identity(), majorVersion)
	if err != nil {
		return nil, err
	}
	own, err := makeOwnDir(s)
	if err != nil {
		return nil, err
	}
	if s.Restore != nil {
		if err := own.prepare(s); err != nil {
			return nil, err
		}
	}
	console, err := prepareConsole(s.ConsoleLog, s.RunDir)
	if err != nil {
		return nil, err
	}
	p, tap, err := start(ctx, s, h, console)
	if err != nil {
		return nil, errors.Join(err, console.discard())
	}
	if tap != nil {
		defer tap.Close()
	}
	m := &machine{proc: p, shape: sh, log: d.opts.Logger}
	if m.handle, err = p.Handle(); err == nil {
		m.handle.Driver, m.handle.RunDir, m.handle.MemoryFile = driverName, s.RunDir, s.MemoryFile
		err = m.bringUp(ctx, s, console, tap)
	}
	if err == nil {
		return m, nil
	}
	if ctx.Err() == nil {
		err = m.explain(err)
	}
	return nil, errors.Join(err, p.Kill(), console.discard())
}

// explain adds to the error of a launch what the VMM said itself, which is better
// than how its end was noticed.
func (m *machine) explain(err error) error {
	if errors.Is(err, vmm.ErrGone) && m.proc.EndsSoon(context.Background()) && m.proc.Err() != nil {
		return m.proc.Err()
	}
	return process.WithLastWords(err, m.logPath())
}

// check is Spec.Validate and what only cloud-hypervisor cannot do.
func check(s vmm.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if strings.ContainsAny(s.RunDir, `,"[]`) {
		return fmt.Errorf("RunDir: %q cannot be written on a command line of cloud-hypervisor", s.RunDir)
	}
	return nil
}

// start runs cloud-hypervisor. It has no machine yet. The tap is nil without a
// network card.
func start(ctx context.Context, s vmm.Spec, h *findings, c *console) (_ *process.Process, tap *os.File, err error) {
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
		if err != nil && tap != nil {
			tap.Close()
		}
	}()
	socket, err := process.Listen(filepath.Join(s.RunDir, socketName))
	if err != nil {
		return nil, nil, err
	}
	open = append(open, socket)
	log := filepath.Join(s.RunDir, logName)
	var logs []*os.File
	for _, path := range []string{s.MainLog, log, filepath.Join(s.RunDir, eventsName)} {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		open, logs = append(open, f), append(logs, f)
	}
	if s.NIC != nil {
		if tap, err = process.OpenTap(s.NetNS, s.NIC.Tap); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command(h.binary,
		// The path is there to be read: by a person, and by who looks for what
		// a launcher that was killed has left.
		"--api-socket", "path="+filepath.Join(s.RunDir, socketName)+",fd=3",
		"--event-monitor", "fd=4",
		"--seccomp", "true")
	cmd.Stdout, cmd.Stderr = logs[0], logs[1]
	cmd.ExtraFiles = []*os.File{socket, logs[2]} // 3 and 4
	var confined *process.Jail
	if s.Jail != nil {
		j, err := makeJail(s, h.binary, c)
		if err != nil {
			return nil, tap, fmt.Errorf("make jail: %w", err)
		}
		confined = &process.Jail{Cgroups: s.Jail.Cgroups, Enter: j.enter, Files: j.files(), Deny: []string{"chroot"}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: j.credential()}
	}
	if err := ctx.Err(); err != nil {
		return nil, tap, err
	}
	p, err := process.Command{Cmd: cmd, RunDir: s.RunDir, Log: log, NetNS: s.NetNS, Jail: confined}.Start()
	return p, tap, err
}

// bringUp makes the machine in a process that has none.
func (m *machine) bringUp(ctx context.Context, s vmm.Spec, c *console, tap *os.File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []*os.File
	if tap != nil {
		files = append(files, tap)
	}
	return m.ask(ctx, func(ctx context.Context, a api) error {
		if s.Restore != nil {
			if err := m.restore(ctx, a, s, files); err != nil {
				return err
			}
			return c.opened(m.handle.PID)
		}
		if err := a.put(ctx, "vm.create", makeConfig(s)); err != nil {
			return err
		}
		if err := c.opened(m.handle.PID); err != nil {
			return err
		}
		if s.NIC != nil {
			if err := a.put(ctx, "vm.add-net", makeNet(*s.NIC), files...); err != nil {
				return err
			}
		}
		return a.put(ctx, "vm.boot", nil)
	})
}

// restoreRequest is what vm.restore is given.
type restoreRequest struct {
	SourceURL string        `json:"source_url"`
	Resume    bool          `json:"resume"`
	NetFDs    []restoredNet `json:"net_fds,omitempty"`
}

// restoredNet says how many of the descriptors that come along are a card's.
type restoredNet struct {
	ID     string `json:"id"`
	NumFDs int    `json:"num_fds"`
}

// restore loads the state prepared in the VMM's own directory.
func (m *machine) restore(ctx context.Context, a api, s vmm.Spec, files []*os.File) error {
	own := own{dir: ownDir(s.RunDir)}
	r := restoreRequest{SourceURL: "file://" + own.path(savedName)}
	if s.NIC != nil {
		r.NetFDs = []restoredNet{{s.NIC.ID, len(files)}}
	}
	if err := a.put(ctx, "vm.restore", r, files...); err != nil {
		return err
	}
	if err := own.remove(savedName); err != nil {
		return err
	}
	state, err := a.state(ctx)
	if err == nil && state != statePaused {
		err = fmt.Errorf("machine is %s after its restore, want %s", state, statePaused)
	}
	return err
}
