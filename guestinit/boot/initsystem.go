package boot

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// ExitProgram is where systemd looks for a program to return to when it is done
// (its "exitrd"): it hands process 1 back to us there, which then powers off
// the way a machine of ours does, whatever was asked for.
const ExitProgram = "/run/initramfs/shutdown"

// tellInit leaves notes for an init system that would otherwise manage what is
// managed already.
func (s *System) tellInit() error {
	notes := map[string]string{
		// The card has its address; taking it away cuts the machine off.
		"/run/systemd/network/00-sietch.network":       "[Match]\nMACAddress=" + proto.GuestMAC + "\n\n[Link]\nUnmanaged=yes\n",
		"/run/NetworkManager/conf.d/00-sietch.conf":    "[keyfile]\nunmanaged-devices=mac:" + proto.GuestMAC + "\n",
		"/run/systemd/resolved.conf.d/00-sietch.conf":  "[Resolve]\nDNS=" + proto.GatewayAddr + "\n",
		"/run/systemd/system.conf.d/00-sietch.conf":    "[Manager]\nDefaultTimeoutStopSec=8s\n",
		"/run/systemd/timesyncd.conf.d/00-sietch.conf": "[Time]\nFallbackNTP=\n",
		"/run/systemd/journald.conf.d/00-sietch.conf":  "[Journal]\nForwardToConsole=no\n",
	}
	var errs []error
	for file, text := range notes {
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		errs = append(errs, err)
	}
	for _, unit := range []string{
		// Nobody logs in on a screen that is not there, on the console, which is
		// a log, nor on the main process's.
		"getty@tty1.service", "serial-getty@ttyS0.service", "serial-getty@hvc0.service",
		// It would put this copy's id onto the disk and unmount ours.
		"systemd-machine-id-commit.service",
	} {
		err := os.MkdirAll("/run/systemd/system", 0o755)
		if err == nil {
			err = os.Symlink("/dev/null", filepath.Join("/run/systemd/system", unit))
		}
		errs = append(errs, err)
	}
	errs = append(errs, bindDir(filepath.Join(StateDir, stateExit), filepath.Dir(ExitProgram)))
	// systemd looks for this one by itself, in directories an image does not have.
	if s.Modules.Has("autofs4") {
		errs = append(errs, s.Modules.Load("autofs4"))
	}
	return errors.Join(errs...)
}
