package boot

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountKernelFS mounts, in the initramfs, what finding the devices needs.
func mountKernelFS() error {
	for _, m := range []struct {
		kind, at string
		flags    uintptr
	}{
		{"devtmpfs", "/dev", unix.MS_NOSUID},
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		err := unix.Mount(m.kind, m.at, m.kind, m.flags, "")
		if err != nil && err != unix.EBUSY { // the kernel may have mounted devtmpfs
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}

// attachConsole makes the console our standard input, output and error. The
// kernel did so for the console it knew when it started us; one without any
// gets /dev/null, which is no reason not to run.
func attachConsole() error {
	f, err := os.OpenFile("/dev/console", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		if f, err = os.OpenFile("/dev/null", os.O_RDWR, 0); err != nil {
			return fmt.Errorf("open console: %w", err)
		}
	}
	defer f.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return fmt.Errorf("attach console: %w", err)
		}
	}
	return nil
}
