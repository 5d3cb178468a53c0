package machine

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Signals by which programs ask process 1 to end the machine: busybox's halt,
// poweroff and reboot, the kernel's Ctrl-Alt-Del, and power failure daemons. A
// restart is not possible from inside: it ends the machine as well.
var endSignals = []unix.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM, unix.SIGINT, unix.SIGPWR}

// strayHandled are the other signals that would end a Go program. To process 1
// they mean something else ("read your configuration again") or nothing.
var strayHandled = []unix.Signal{
	unix.SIGHUP, unix.SIGQUIT, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS, unix.SIGALRM, unix.SIGVTALRM,
	unix.SIGPIPE, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGSTKFLT, unix.SIGIO,
}

// watchSignals keeps signals from ending this process, and with it the machine
// in a way that is not orderly. They are handled and not ignored, because
// children inherit what is ignored. Handlers run until the process ends.
func (m *Machine) watchSignals() {
	end := make(chan os.Signal, 1)
	stray := make(chan os.Signal, 1)
	for _, s := range endSignals {
		signal.Notify(end, s)
	}
	for _, s := range strayHandled {
		signal.Notify(stray, s)
	}
	for s := unix.Signal(rtMin); s <= rtMax; s++ {
		signal.Notify(stray, s)
	}
	go func() {
		for {
			select {
			case <-stray:
			case <-end:
				if !m.beside { // the init system is asked, not the agent
					m.shutDown()
				}
			}
		}
	}()
}
