package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/boot"
	"github.com/sietch-dev/sietch/guestinit/identity"
	"github.com/sietch-dev/sietch/guestinit/proto"
)

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
