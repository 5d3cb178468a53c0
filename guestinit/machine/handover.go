package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

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
