package branches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is the file whose flock is the store's lock.
const lockName = "lock"

// lockPoll is how often a waiting process tries again. Most commands hold the
// store for tens of milliseconds.
const lockPoll = 2 * time.Millisecond

// lockDir takes the store's lock, waiting up to wait for another process, which
// is told so: it may have the store open and nothing to do with it (keeper.go). The
// kernel releases it when the process ends, however it ends. The returned file
// is the lock: closing it lets go.
func lockDir(ctx context.Context, dir string, wait time.Duration) (_ *os.File, err error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	deadline := time.Now().Add(wait)
	var wanted *os.File
	defer func() {
		if wanted != nil {
			_ = wanted.Close()
		}
	}()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock store: %w", err)
		}
		if !time.Now().Before(deadline) {
			return nil, lockHolder(dir, f)
		}
		if wanted == nil {
			wanted = announce(dir)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock store: %w", ctx.Err())
		case <-time.After(lockPoll):
		}
	}
	// Who holds it is for people to read; on a full disk it goes unsaid.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprintf("%d\n%s\n", os.Getpid(), commandName())), 0)
	}
	return f, nil
}

func lockHolder(dir string, f *os.File) error {
	e := &LockError{Dir: dir}
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, 0)
	pid, command, ok := bytes.Cut(b[:n], []byte("\n"))
	if ok {
		if p, err := strconv.Atoi(string(pid)); err == nil {
			e.PID, e.Command = p, strings.TrimSpace(string(command))
		}
	}
	return e
}

// commandName is the program and its verb. Arguments stay out of it: they may
// be secrets.
func commandName() string {
	name := filepath.Base(os.Args[0])
	if len(os.Args) > 1 && ValidateName(os.Args[1]) == nil {
		name += " " + os.Args[1]
	}
	return name
}
