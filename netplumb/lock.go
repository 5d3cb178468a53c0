package netplumb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lockPath is one file for the whole host: instances compete for ports, blocks
// and forwarding. It is held for a few milliseconds at a time.
const lockPath = "/run/sietch/netplumb.lock"

// hostLock excludes other goroutines first and other processes second, so that
// only the latter have to poll.
type hostLock struct {
	path string        // empty: this process alone
	sem  chan struct{} // capacity 1
}

func newHostLock(path string) *hostLock { return &hostLock{path: path, sem: make(chan struct{}, 1)} }

// acquire returns a function that lets go.
func (l *hostLock) acquire(ctx context.Context) (release func(), err error) {
	select {
	case l.sem <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("lock host network: %w", context.Cause(ctx))
	}
	if l.path == "" {
		return func() { <-l.sem }, nil
	}
	f, err := l.flock(ctx)
	if err != nil {
		<-l.sem
		return nil, fmt.Errorf("lock host network: %w", err)
	}
	return func() {
		// Unlock before close: a process being forked at this moment holds the
		// same open file until it execs.
		unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
		<-l.sem
	}, nil
}

func (l *hostLock) flock(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, &os.PathError{Op: "flock", Path: l.path, Err: err}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// idLocks serializes the calls for one sandbox within this process.
type idLocks struct {
	mu   sync.Mutex
	held map[string]*idLock
}

type idLock struct {
	sem  chan struct{}
	uses int
}

func (l *idLocks) acquire(ctx context.Context, id string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*idLock{}
	}
	k := l.held[id]
	if k == nil {
		k = &idLock{sem: make(chan struct{}, 1)}
		l.held[id] = k
	}
	k.uses++
	l.mu.Unlock()
	drop := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.uses--; k.uses == 0 {
			delete(l.held, id)
		}
	}
	select {
	case k.sem <- struct{}{}:
		return func() { <-k.sem; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, fmt.Errorf("lock network of %s: %w", id, context.Cause(ctx))
	}
}
