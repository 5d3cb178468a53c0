package branches

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// wantedName is the file by which those who wait for a store say so: each has a
// read lock on it for as long as it waits. The locks belong to open files, so the
// kernel takes them back however a process ends, and whoever holds the store can
// ask for them without getting into anybody's way. No one ever writes to it.
const wantedName = "wanted"

// announce says that this process waits for the store, until the file is
// closed. Nil when it cannot be said: the wait is as long as without then.
func announce(dir string) *os.File {
	f, err := os.OpenFile(filepath.Join(dir, wantedName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil
	}
	l := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart}
	if err := lockRange(f, unix.F_OFD_SETLK, &l); err != nil {
		_ = f.Close()
		return nil
	}
	return f
}

// waiters is how the holder of a store sees who waits for it. The zero value sees
// nothing, which is an error.
type waiters struct{ f *os.File }

func watchWaiters(dir string) (waiters, error) {
	f, err := os.OpenFile(filepath.Join(dir, wantedName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return waiters{}, fmt.Errorf("watch for who waits for the store: %w", err)
	}
	return waiters{f}, nil
}

// any reports whether somebody waits.
func (w waiters) any() (bool, error) {
	if w.f == nil {
		return false, os.ErrInvalid
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := lockRange(w.f, unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("watch for who waits for the store: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

func (w waiters) close() {
	if w.f != nil {
		_ = w.f.Close()
	}
}

func lockRange(f *os.File, how int, l *unix.Flock_t) error {
	for {
		if err := unix.FcntlFlock(f.Fd(), how, l); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
