package guestmem

import (
	"context"
	"errors"
)

// ErrTracker is returned by [Memory.Resume] when the tracker described by a
// state is not in the process any more, or the state is damaged. The way on is
// a new tracker whose first Collect is applied to the commit that the mapping
// was made from, not to the last one.
var ErrTracker = errors.New("write tracker is lost")

// Tracker reports writes since a point in time. Not safe for concurrent use.
type Tracker interface {
	// Name of the mechanism: "uffd-wp", "soft-dirty" or "none".
	Name() string
	// Collect returns the pages that may have changed since the last Collect
	// and starts anew, atomically for each page: a write is in this result or
	// in the next. The first Collect of a new tracker returns every page that
	// differs from the memory file. Pages that fell back to the memory file's
	// contents (discarded by the VMM) count as changed. The guest may be
	// running.
	Collect(ctx context.Context) (*PageSet, error)
	// Return gives back pages of an earlier Collect that did not become part
	// of a durable commit; the next Collect reports them again.
	Return(pages *PageSet)
	// State is what a later process needs to go on, see the package comment.
	State() State
}

// State of a tracker, to be stored as JSON.
type State struct {
	Mechanism string `json:"mechanism"`
	// FD is the userfaultfd's number in the VMM process (uffd-wp only).
	FD int `json:"fd,omitempty"`
	// Known is the marshalled set of pages that differed from the memory file
	// at the last Collect.
	Known []byte `json:"known,omitempty"`
	// Pending is the marshalled set of returned pages.
	Pending []byte `json:"pending,omitempty"`
	// Uncertain: a Collect may have happened whose result is lost.
	Uncertain bool `json:"uncertain,omitempty"`
}

// Unsure is the state to store while the results of Collect are not durable.
func (s State) Unsure() State {
	s.Uncertain = true
	return s
}

// Track starts tracking with the best mechanism that works here. Nothing is
// protected before the first Collect, so a machine that is never committed
// pays nothing.
func (m *Memory) Track(ctx context.Context) (Tracker, error) {
	return &untracked{mem: m}, nil
}

// Resume picks up the tracker that an earlier process left.
func (m *Memory) Resume(ctx context.Context, s State) (Tracker, error) {
	known, pending, err := s.sets()
	if err != nil {
		return nil, err
	}
	return &untracked{mem: m, known: known, pending: pending}, nil
}

func (s State) sets() (known, pending *PageSet, err error) {
	known, pending = new(PageSet), new(PageSet)
	for _, d := range []struct {
		set  *PageSet
		data []byte
	}{{known, s.Known}, {pending, s.Pending}} {
		if len(d.data) == 0 {
			continue
		}
		if err := d.set.UnmarshalBinary(d.data); err != nil {
			return nil, nil, errors.Join(ErrTracker, err)
		}
	}
	return known, pending, nil
}

// untracked is the mechanism of last resort: everything anonymous is reported
// every time.
type untracked struct {
	mem            *Memory
	known, pending *PageSet
}

func (u *untracked) Name() string { return "none" }

func (u *untracked) Collect(ctx context.Context) (*PageSet, error) {
	now, err := u.mem.Written(ctx)
	if err != nil {
		return nil, err
	}
	out := now.Clone()
	out.Union(u.known)
	out.Union(u.pending)
	u.known, u.pending = now, nil
	return out, nil
}

func (u *untracked) Return(pages *PageSet) {
	if u.pending == nil {
		u.pending = new(PageSet)
	}
	u.pending.Union(pages)
}

func (u *untracked) State() State {
	s := State{Mechanism: u.Name()}
	if u.known != nil {
		s.Known, _ = u.known.MarshalBinary()
	}
	if u.pending != nil {
		s.Pending, _ = u.pending.MarshalBinary()
	}
	return s
}
