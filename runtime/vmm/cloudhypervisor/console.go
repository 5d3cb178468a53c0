package cloudhypervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// cloud-hypervisor has two ways to write what a guest says to a file: standard
// output, which appends when it was opened so, and a file that it opens itself,
// truncates, and writes from its beginning. The main process gets the former.
// The console gets the latter, and the open file is made to append: its flags
// are the file's, not the descriptor's, so changing them needs no more than a
// copy of the descriptor (pidfd_getfd(2), Linux 5.6). It happens before the
// guest runs.

// consolePath is where cloud-hypervisor finds its console file: a link in a
// directory that is removed once the file is open. A guest that restarts makes
// it open the file again, which then fails and ends the machine, as every
// restart does: the caller boots it anew.
func consolePath(runDir string) string { return filepath.Join(ownDir(runDir), "console", "log") }

// console is the console's file while a machine is launched.
type console struct {
	log  string // where it is to end up
	file string // what cloud-hypervisor opens: log itself, when there is nothing in it yet
	link string
}

// prepareConsole makes the file and the link to it. The file exists afterwards.
func prepareConsole(log, runDir string) (*console, error) {
	c := &console{log: log, file: log, link: consolePath(runDir)}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open console log: %w", err)
	}
	st, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("open console log: %w", err)
	}
	if st.Size() > 0 {
		// What an earlier machine said is put before what this one will say, in a
		// new file that then takes the log's place: at no time is it gone.
		f, err := os.CreateTemp(filepath.Dir(log), filepath.Base(log)+".new-")
		if err != nil {
			return nil, fmt.Errorf("make new console log: %w", err)
		}
		c.file = f.Name()
		if err := f.Close(); err != nil {
			return nil, errors.Join(fmt.Errorf("make new console log: %w", err), c.discard())
		}
	}
	dir := filepath.Dir(c.link)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the caller's umask is
		return nil, errors.Join(err, c.discard())
	}
	if err := os.Symlink(c.file, c.link); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// discard removes what a failed launch leaves.
func (c *console) discard() error {
	if c.file == c.log {
		return nil
	}
	if err := os.Remove(c.file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// opened is called when process pid has opened the file and the guest does not
// run yet.
func (c *console) opened(pid int) error {
	if err := os.RemoveAll(filepath.Dir(c.link)); err != nil {
		return err
	}
	f, err := c.append(pid)
	if err != nil {
		return fmt.Errorf("make console log append: %w", err)
	}
	defer f.Close()
	if c.file == c.log {
		return nil
	}
	earlier, err := os.Open(c.log)
	if err != nil {
		return fmt.Errorf("keep console log: %w", err)
	}
	defer earlier.Close()
	// Copying within the kernel refuses files that append.
	if _, err := io.Copy(struct{ io.Writer }{f}, earlier); err != nil {
		return fmt.Errorf("keep console log: %w", err)
	}
	if err := os.Rename(c.file, c.log); err != nil {
		return fmt.Errorf("keep console log: %w", err)
	}
	return nil
}

// append makes all that process pid has open of the file append, and returns a
// copy of one.
func (c *console) append(pid int) (_ *os.File, err error) {
	var want unix.Stat_t
	if err := unix.Stat(c.file, &want); err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process: %w", err)
	}
	defer unix.Close(pidfd)
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found *os.File
	defer func() {
		if err != nil && found != nil {
			found.Close()
		}
	}()
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) != nil || st.Dev != want.Dev || st.Ino != want.Ino {
			continue
		}
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err != nil {
			return nil, fmt.Errorf("copy descriptor: %w", err)
		}
		if found != nil {
			found.Close()
		}
		found = os.NewFile(uintptr(fd), c.file)
		flags, err := unix.FcntlInt(found.Fd(), unix.F_GETFL, 0)
		if err != nil {
			return nil, err
		}
		if _, err := unix.FcntlInt(found.Fd(), unix.F_SETFL, flags|unix.O_APPEND); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, errors.New("cloud-hypervisor has not opened it")
	}
	return found, nil
}
