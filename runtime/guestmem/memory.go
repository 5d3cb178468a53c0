package guestmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone is returned when the VMM process has ended.
var ErrGone = errors.New("VMM process is gone")

// Target names the guest RAM of one VMM process.
type Target struct {
	PID int
	// MemoryFile is the file the VMM maps privately as guest RAM.
	MemoryFile string
	// SizeBytes of guest RAM; all of it must be found mapped.
	SizeBytes int64
}

// Memory looks at the guest RAM of one process. It holds on to the address
// space it found, not to a pid.
type Memory struct {
	target  Target
	regions []region // in file order, without gaps
	pidfd   int
	pagemap *os.File

	mu        sync.Mutex
	closed    bool
	scanIoctl bool // PAGEMAP_SCAN works here
}

// Open finds the guest RAM of a process. It needs the rights of a debugger on
// the process (same user, or CAP_SYS_PTRACE).
func Open(t Target) (_ *Memory, err error) {
	if t.SizeBytes <= 0 || t.SizeBytes%PageBytes != 0 {
		return nil, fmt.Errorf("open guest memory of process %d: size of %d bytes is not a number of pages", t.PID, t.SizeBytes)
	}
	pidfd, err := unix.PidfdOpen(t.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", t.PID, goneIfMissing(err))
	}
	defer func() {
		if err != nil {
			unix.Close(pidfd)
		}
	}()
	pagemap, err := os.Open("/proc/" + strconv.Itoa(t.PID) + "/pagemap")
	if err != nil {
		return nil, fmt.Errorf("open page map of process %d: %w", t.PID, goneIfMissing(err))
	}
	defer func() {
		if err != nil {
			pagemap.Close()
		}
	}()
	regions, err := findRegions(t)
	if err != nil {
		return nil, fmt.Errorf("find guest memory of process %d: %w", t.PID, goneIfMissing(err))
	}
	m := &Memory{target: t, regions: regions, pidfd: pidfd, pagemap: pagemap}
	// Everything opened by pid above belongs to the process of the pidfd as
	// long as that one still lives.
	if !m.alive() {
		return nil, fmt.Errorf("open guest memory of process %d: %w", t.PID, ErrGone)
	}
	m.scanIoctl = m.probeScan()
	return m, nil
}

// Close releases the descriptors. Trackers and the tracked state stay in the
// VMM process. Idempotent.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	return errors.Join(m.pagemap.Close(), unix.Close(m.pidfd))
}

// Pages is the number of pages of guest RAM.
func (m *Memory) Pages() int64 { return m.target.SizeBytes / PageBytes }

// Written returns the pages written since the mapping was made: the anonymous
// ones, in memory or swapped out. On a running machine it is a snapshot that is
// stale at once.
func (m *Memory) Written(ctx context.Context) (*PageSet, error) {
	scan := m.readAnonymous
	if m.scanIoctl {
		scan = m.scanAnonymous
	}
	set, err := scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("scan guest memory of process %d: %w", m.target.PID, err)
	}
	return set, nil
}

// alive reports whether the process that was opened still runs. True after a
// use of the pid means that the use met that process and no other.
func (m *Memory) alive() bool {
	fds := []unix.PollFd{{Fd: int32(m.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 0
	}
}

func goneIfMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w (%w)", ErrGone, err)
	}
	return err
}
