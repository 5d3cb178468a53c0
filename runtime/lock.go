package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// fileLock is an flock: it goes away with its process, so a crash leaves none.
type fileLock struct {
	f *os.File
}

// errLocked is returned by tryLock when somebody else holds the lock.
var errLocked = errors.New("lock is held")

func tryLock(path string, how int) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &fileLock{f}, nil
}

// waitLock polls: flock itself cannot be bounded by a context.
func waitLock(ctx context.Context, path string, how int, wait time.Duration) (*fileLock, error) {
	deadline := time.Now().Add(wait)
	pause := time.Millisecond
	for {
		l, err := tryLock(path, how)
		if !errors.Is(err, errLocked) {
			return l, err
		}
		if time.Now().After(deadline) {
			return nil, errLocked
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

func (l *fileLock) unlock() {
	if l != nil {
		l.f.Close()
	}
}

// scratch is a directory beneath DATA/tmp that is swept once its owner is gone.
type scratch struct {
	dir  string
	lock *fileLock
}

func (l layout) newScratch(kind string) (*scratch, error) {
	dir, err := os.MkdirTemp(l.tmp(), kind+"-")
	if err != nil {
		return nil, fmt.Errorf("create scratch directory: %w", err)
	}
	// The lock lies beside the directory, which may be renamed into place.
	lock, err := tryLock(dir+".lock", unix.LOCK_EX)
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("lock scratch directory: %w", err)
	}
	return &scratch{dir: dir, lock: lock}, nil
}

func (s *scratch) path(name string) string { return filepath.Join(s.dir, name) }

// remove drops what is still there; harmless after the directory was renamed.
func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	os.Remove(s.dir + ".lock")
	s.lock.unlock()
	return err
}

// sweepScratch removes directories whose owners are gone, and says how many.
func (l layout) sweepScratch() int {
	entries, err := os.ReadDir(l.tmp())
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		name := e.Name()
		if filepath.Ext(name) != ".lock" {
			continue
		}
		path := filepath.Join(l.tmp(), name)
		lock, err := tryLock(path, unix.LOCK_EX)
		if err != nil {
			continue
		}
		if os.RemoveAll(path[:len(path)-len(".lock")]) == nil {
			os.Remove(path)
			n++
		}
		lock.unlock()
	}
	return n
}
