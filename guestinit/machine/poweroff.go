package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How long things may take on the way down. Together they stay below what the
// host waits before it ends the machine itself (10 s).
const (
	replyGrace = 20 * time.Millisecond // the answer to the request that started it
	mainGrace  = 6 * time.Second       // the main process, after its stop signal
	termGrace  = 1 * time.Second       // everybody else, after SIGTERM
	killGrace  = 1 * time.Second       // everybody, after SIGKILL
)

// powerOff ends everything that runs and powers the machine off. It is the way
// of a machine whose process 1 this is, and does not return.
func (m *Machine) powerOff() {
	time.Sleep(replyGrace)
	m.stopMain()
	unix.Kill(-1, unix.SIGTERM)
	unix.Kill(-1, unix.SIGCONT)
	if !m.alone(termGrace) {
		unix.Kill(-1, unix.SIGKILL)
		m.alone(killGrace)
	}
	layer := -1
	if m.layer != nil {
		layer = int(m.layer.Fd())
	}
	settle(layer)
	turnOff()
}

// stopMain asks the main process to end and waits for it.
func (m *Machine) stopMain() {
	m.main.mu.Lock()
	p := m.main.process
	m.main.mu.Unlock()
	if p == nil {
		return
	}
	sig, err := parseSignal(m.config.StopSignal)
	report(err)
	report(m.reaper.Signal(p, sig))
	select {
	case <-p.Done():
	case <-time.After(mainGrace):
	}
}

// alone waits until no process is left.
func (m *Machine) alone(limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		if m.reaper.Alone() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// settle makes the file system at layer read-only, so that everything is on
// disk and its journal is empty; layer -1 only writes everything out. Files
// still open for writing prevent that; freezing does not mind them.
func settle(layer int) {
	unix.Sync()
	if layer < 0 {
		return
	}
	err := unix.Mount("", "/proc/self/fd/"+strconv.Itoa(layer), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if err == nil {
		return
	}
	const fifreeze = 0xc0045877 // FIFREEZE, _IOWR('X', 119, int)
	if ferr := unix.IoctlSetInt(layer, fifreeze, 0); ferr != nil {
		report(fmt.Errorf("make the layer read-only: %w; freeze it: %w", err, ferr))
	}
}

// turnOff ends the machine. Everything is on disk already.
func turnOff() {
	fmt.Fprintln(os.Stderr, "sietch: power off")
	unix.IoctlSetInt(int(os.Stderr.Fd()), unix.TCSBRK, 1) // until the console has it
	// Without ACPI power off only halts, and the VMM waits forever; there a
	// restart ends it, because VMMs are told not to restart.
	if _, err := os.Stat("/sys/firmware/acpi"); err != nil {
		unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// Fatal ends a machine that cannot run, with the reason on its console.
func Fatal(err error) {
	fmt.Fprintf(os.Stderr, "sietch: fatal: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	unix.Sync()
	turnOff()
}

// Real-time signals as libc counts them; it keeps the first two to itself.
const rtMin, rtMax = 34, 64

// parseSignal reads a stop signal as Dockerfiles write it: a number, or a name
// with or without SIG, RTMIN+n and RTMAX-n included. Empty is SIGTERM; what is
// not understood is SIGTERM too, and an error.
func parseSignal(s string) (unix.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(s)), "SIG")
	if name == "" {
		return unix.SIGTERM, nil
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= rtMax {
		return unix.Signal(n), nil
	}
	for prefix, base := range map[string]int{"RTMIN": rtMin, "RTMAX": rtMax} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				break
			}
		}
		if base+n >= rtMin && base+n <= rtMax {
			return unix.Signal(base + n), nil
		}
	}
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return unix.SIGTERM, fmt.Errorf("stop signal %q is not known, SIGTERM is used", s)
}
