package guestmem

import (
	"context"
	"errors"
	"fmt"
)

// uffdTracker write-protects anonymous pages with a userfaultfd in its
// asynchronous mode: the kernel lifts the protection of a page at its first
// write and lets the write through, and PAGEMAP_SCAN reports and protects again
// in one atomic step.
//
// Only pages that the page tables know are ever protected. One that appears
// later shows up unprotected, which is the same as written; protecting holes
// too would populate page tables for all of RAM (2 MiB for each GiB).
//
// What the tracker cannot see: writes through pages that the kernel pinned
// before a Collect, as direct I/O into guest RAM does. A VMM must use buffered
// I/O, and vhost devices only if they copy.
type uffdTracker struct {
	mem        *Memory
	uffd       *userfault
	registered bool
	ledger
}

func (m *Memory) trackUffd(ctx context.Context) (*uffdTracker, error) {
	if !m.scanIoctl {
		return nil, errors.New("no PAGEMAP_SCAN (before Linux 6.7)")
	}
	u := m.findUserfault()
	if u == nil {
		var err error
		if u, err = m.makeUserfault(ctx); err != nil {
			return nil, err
		}
	}
	return &uffdTracker{mem: m, uffd: u}, nil
}

func (m *Memory) resumeUffd(ctx context.Context, s State, l ledger) (*uffdTracker, error) {
	if !m.scanIoctl {
		return nil, fmt.Errorf("%w: no PAGEMAP_SCAN", ErrTracker)
	}
	u, err := m.openUserfault(s.FD)
	if err != nil {
		return nil, errors.Join(ErrTracker, err)
	}
	t := &uffdTracker{mem: m, uffd: u, ledger: l}
	if l.collected {
		if err := m.checkRegistered(ctx); err != nil {
			return nil, errors.Join(ErrTracker, err, u.close())
		}
		t.registered = true
	}
	return t, nil
}

func (t *uffdTracker) Name() string { return UffdWP }

func (t *uffdTracker) State() State {
	s := t.state(UffdWP)
	s.FD = t.uffd.remote
	return s
}

func (t *uffdTracker) Close() error { return t.uffd.close() }

func (t *uffdTracker) Collect(ctx context.Context) (*PageSet, error) {
	if !t.registered {
		// As late as possible: in a registered mapping a read fault maps one
		// page of the file instead of the sixteen around it.
		if err := t.uffd.register(t.mem.regions); err != nil {
			return nil, fmt.Errorf("collect writes of process %d: %w", t.mem.target.PID, err)
		}
		t.registered = true
	}
	anonymous, written, err := t.mem.scanProtect(ctx)
	if err != nil {
		t.uncertain = true // pages may have been protected that nobody was told of
		return nil, fmt.Errorf("collect writes of process %d: %w", t.mem.target.PID, err)
	}
	return t.settle(anonymous, written), nil
}

func (t *uffdTracker) Recollect(ctx context.Context) (*PageSet, error) {
	if !t.exact() || !t.registered {
		return t.Collect(ctx)
	}
	written, err := t.mem.scanProtectWritten(ctx)
	if err != nil {
		t.uncertain = true
		return nil, fmt.Errorf("collect writes of process %d: %w", t.mem.target.PID, err)
	}
	return t.add(written), nil
}
