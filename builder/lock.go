package builder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errLocked: somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// flock takes a lock file. how is LOCK_SH or LOCK_EX, with LOCK_NB not to wait.
// The lock ends with the returned function or the process.
func flock(path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// lock guards the short exclusive sections of the store.
func (s *store) lock() (unlock func(), err error) {
	return flock(filepath.Join(s.dir, "lock"), unix.LOCK_EX)
}

// holdBlobs keeps unreferenced blobs from being swept.
func (s *store) holdBlobs() (release func(), err error) {
	return flock(filepath.Join(s.dir, "blobs.lock"), unix.LOCK_SH)
}

const tempPrefix = "builder-"

// tempDir makes a directory for one operation. It is locked for as long as the
// operation lives, which is how a sweep tells it from what a killed one left.
func (s *store) tempDir() (dir string, release func(), err error) {
	// The parent's lock closes the gap between making and locking.
	unlock, err := flock(filepath.Join(s.temp, tempPrefix+"lock"), unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	dir, err = os.MkdirTemp(s.temp, tempPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make temporary directory: %w", err)
	}
	unlockDir, err := flock(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() {
		if err := dropTemp(dir); err != nil {
			s.log.Warn("temporary directory stays", "dir", dir, "err", err)
		}
		unlockDir()
	}, nil
}

// sweepTemp removes the temporary directories of dead processes.
func (s *store) sweepTemp() error {
	unlock, err := flock(filepath.Join(s.temp, tempPrefix+"lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(s.temp)
	if err != nil {
		return fmt.Errorf("sweep temporary directories: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		dir := filepath.Join(s.temp, e.Name())
		unlockDir, err := flock(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err = dropTemp(dir)
		if unlockDir != nil {
			unlockDir()
		}
		if err != nil {
			return fmt.Errorf("sweep temporary directories: %w", err)
		}
	}
	return nil
}

// dropTemp deletes a temporary directory. Tools that were killed may have left
// mounts of the host's own directories in it, which have to go first.
func dropTemp(dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return removeUnmounted(dir)
}
