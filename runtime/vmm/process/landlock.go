package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// Files are all that a process may still open by path, in the root directory it
// is started in. What is not there is left out. Files it was handed open stay as
// they are.
type Files struct {
	Read    []string // read; of a directory, all beneath it
	Run     []string // likewise, and executed
	Write   []string // files that are read, written and truncated
	Make    []string // directories in which files are made, read, written and removed
	Control []string // devices that are read, written and controlled with ioctl(2)
}

// Landlock is the version of Landlock's interface that this host's kernel
// offers, 0 for none: from 1 on it restricts files, from 3 on truncation, from 4
// on TCP, from 5 on ioctl(2) on devices, from 6 on signals and abstract sockets.
func Landlock() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0 // not built in, or not switched on
	}
	return int(version)
}

const (
	readRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	runRights  = readRights | unix.LANDLOCK_ACCESS_FS_EXECUTE
	// writeRights and controlRights are those of files: the kernel refuses others.
	writeRights   = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	controlRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	makeRights    = writeRights | unix.LANDLOCK_ACCESS_FS_READ_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
	// dirRights mean nothing for a file.
	dirRights = unix.LANDLOCK_ACCESS_FS_READ_DIR
)

// restrict leaves the calling thread, which has no new privileges to gain, and
// what it starts no files but these, no TCP or UDP of its own, no signals to
// others, and none of their abstract sockets: as much of it as the kernel offers,
// which may be nothing. It is for good.
func (f Files) restrict() error {
	rules, err := f.rules()
	if err != nil {
		return err
	}
	ruleset, flags, err := landlock.V11.BestEffort().NewRulesetFD(rules...)
	if err != nil {
		return fmt.Errorf("make Landlock rules: %w", err)
	}
	if ruleset < 0 {
		return nil // not offered
	}
	defer unix.Close(ruleset)
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), uintptr(flags), 0); errno != 0 {
		return fmt.Errorf("apply Landlock rules: %w", errno)
	}
	return nil
}

func (f Files) rules() ([]landlock.Rule, error) {
	var rules []landlock.Rule
	for _, group := range []struct {
		paths  []string
		rights landlock.AccessFSSet
	}{{f.Read, readRights}, {f.Run, runRights}, {f.Write, writeRights}, {f.Make, makeRights}, {f.Control, controlRights}} {
		for _, path := range group.paths {
			st, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("make Landlock rules: %w", err)
			}
			rights := group.rights
			if !st.IsDir() {
				rights &^= dirRights
			}
			rules = append(rules, landlock.PathAccess(rights, path))
		}
	}
	return rules, nil
}
