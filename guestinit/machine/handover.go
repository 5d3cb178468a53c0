package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/boot"
	"github.com/sietch-dev/sietch/guestinit/identity"
	"github.com/sietch-dev/sietch/guestinit/proto"
)

// AgentName is argument 0 of the agent beside an init system. By the @ systemd
// knows a process that it must leave alone until the very end of a shutdown.
const AgentName = "@sietch-agent"

// Descriptors the agent beside an init system is started with.
const (
	configFD = 3
	layerFD  = 4
)

// agentGroup keeps the agent out of the init system's control groups.
const agentGroup = "/sys/fs/cgroup/sietch"

// HandOver starts the agent beside and makes the image's init system process 1.
// It returns nil, and has done nothing, when the image has no such program: the
// machine then runs without one, and says so as the main process's result.
func HandOver(s *boot.System) error {
	path, env, err := initProgram(s.Config)
	if err != nil {
		s.Remarks = append(s.Remarks, err)
		return nil
	}
	names, remarks, err := mountNames(s.Config)
	report(s.Remarks...)
	report(remarks...)
	if err != nil {
		return err
	}
	// Before the init system: it draws random numbers and logs times.
	first, err := identity.New(identity.Options{Names: names})
	if err == nil {
		err = first.Apply(context.Background(), s.Config.Identity)
	}
	if err != nil {
		return fmt.Errorf("apply identity: %w", err)
	}
	if err := startBeside(s); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	s.Ready()
	report(s.Modules.LoadForDevices())
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, s.Config.Args, env))
}

// initProgram finds what becomes process 1, by the rules for any command.
func initProgram(c proto.Config) (path string, env []string, err error) {
	p, status, err := agent.New(agent.Options{Env: c.Env}).Prepare(proto.ExecRequest{Args: c.Args})
	if err != nil {
		return "", nil, err
	}
	if status != nil {
		return "", nil, errors.New(status.Error)
	}
	return p.Cmd.Path, p.Cmd.Env, nil
}

// startBeside starts this program as the agent.
func startBeside(s *boot.System) error {
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	config := os.NewFile(uintptr(fd), "config")
	defer config.Close()
	if _, err := config.WriteAt(s.RawConfig, 0); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{AgentName},
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		ExtraFiles: []*os.File{configFD - 3: config, layerFD - 3: s.Layer},
		Dir:        "/",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := os.Mkdir(agentGroup, 0o755); err == nil {
		group, err := os.Open(agentGroup)
		if err != nil {
			return err
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	} else {
		report(err)
	}
	return cmd.Start() // its parent is soon another program, which reaps it
}

// RunBesideInit is the agent beside an init system.
func RunBesideInit() error {
	f := os.NewFile(configFD, "config")
	b, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	f.Close()
	c, err := agent.DecodeConfig(b)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	// Not to be chosen when memory runs out: it is the only way in.
	report(os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0))

	unix.CloseOnExec(layerFD)
	names, err := identity.OpenNames(namesDir)
	if err != nil {
		return err
	}
	m, err := newMachine(c, os.NewFile(layerFD, "layer"), names)
	if err != nil {
		return err
	}
	m.beside = true
	m.end = m.powerOffInit
	ln, err := listen()
	if err != nil {
		return err
	}
	if modules, err := boot.OpenModules(); err != nil {
		report(err)
	} else {
		go m.settleDown(modules)
	}
	return m.server.Serve(ln)
}

// initGrace is what an init system gets to power the machine off.
const initGrace = 8500 * time.Millisecond

// powerOffInit asks process 1 to power the machine off, in its own language, and
// does it the hard way when it does not.
func (m *Machine) powerOffInit() {
	time.Sleep(replyGrace)
	ask := askPowerOff("/proc/1")
	if ask != 0 {
		report(unix.Kill(1, ask))
	} else if p, status, err := m.server.Prepare(proto.ExecRequest{Args: []string{"poweroff"}, User: "root", WorkingDir: "/"}); err == nil && status == nil {
		_, err := m.reaper.Start(p.Cmd)
		report(err)
	}
	time.Sleep(initGrace)
	report(fmt.Errorf("the init system did not power off within %s", initGrace))
	unix.Kill(-1, unix.SIGKILL)
	settle(int(m.layer.Fd()))
	turnOff()
}

// askPowerOff is the signal by which the init system at proc understands that
// it is to power off; 0 for one that has none.
func askPowerOff(proc string) unix.Signal {
	const systemdPowerOff = 34 + 4 // SIGRTMIN+4, systemd(1)
	exe, _ := os.Readlink(filepath.Join(proc, "exe"))
	switch filepath.Base(exe) {
	case "systemd":
		return systemdPowerOff
	case "busybox":
		return unix.SIGUSR2
	}
	return 0
}

// Exit is process 1 again after systemd has stopped everything and switched to
// ExitProgram's directory. The agent still runs, and holds the layer open.
func Exit() {
	layer := -1
	if pid := findAgent("/proc"); pid != 0 {
		if f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd", strconv.Itoa(layerFD))); err == nil {
			layer = int(f.Fd())
		}
	}
	settle(layer)
	turnOff()
}

func findAgent(proc string) int {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err == nil && strings.HasPrefix(string(b), AgentName+"\x00") {
			return pid
		}
	}
	return 0
}
