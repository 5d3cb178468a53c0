package boot

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names below StateDir.
const (
	stateModules  = "modules"  // what came with the initramfs
	stateModprobe = "modprobe" // this program, as the kernel calls it
	stateExit     = "exit"     // a directory with this program, as systemd calls it
)

// makeState makes the state directory at dir, which is StateDir seen from the
// initramfs, and brings into it what the machine still needs from there.
func makeState(dir string, init bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("sietch", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=4m"); err != nil {
		return err
	}
	if err := errors.Join(
		bindDir("/modules", filepath.Join(dir, stateModules)),
		bindOver("/init", filepath.Join(dir, stateModprobe)),
	); err != nil || !init {
		return err
	}
	// Another name of the program, not a mount over a file: systemd takes the
	// directory without what is mounted below it.
	for _, d := range []string{"/exit/dev", "/exit/proc", "/exit/run", "/exit/sys"} { // it moves mounts there
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return errors.Join(
		os.Link("/init", filepath.Join("/exit", filepath.Base(ExitProgram))),
		bindDir("/exit", filepath.Join(dir, stateExit)),
	)
}

// bindDir mounts the directory src at dst, which is created if missing.
func bindDir(src, dst string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount over", Path: dst, Err: err}
	}
	return nil
}

// bindOver mounts the file src at the file dst, which is created if missing.
func bindOver(src, dst string) error {
	f, err := os.OpenFile(dst, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount over", Path: dst, Err: err}
	}
	return nil
}

// Modprobe is what the kernel runs, as "modprobe -q -- NAME", when something in
// the guest asks for a module: it loads what came with the initramfs under that
// name or alias. Images have no modules for a kernel they do not know.
func Modprobe(args []string) error {
	m, err := OpenModules()
	if err != nil {
		return err
	}
	for _, name := range args {
		if name == "" || name[0] == '-' {
			continue
		}
		found := m.Match(name)
		if len(found) == 0 {
			return &os.PathError{Op: "load module", Path: name, Err: os.ErrNotExist}
		}
		for _, f := range found {
			if err := m.Load(f); err != nil {
				return err
			}
		}
	}
	return nil
}
