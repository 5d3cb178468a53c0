package guestmem

import (
	"context"
	"errors"
	"fmt"
)

// ErrTracker is returned by [Memory.Resume] when the tracker described by a
// state is not in the process any more, or the state is damaged. The way on is
// a new tracker whose first Collect is applied to the commit that the mapping
// was made from, not to the last one.
var ErrTracker = errors.New("write tracker is lost")

// Mechanisms, best first.
const (
	UffdWP    = "uffd-wp"    // asynchronous userfaultfd write protection, Linux 6.7
	SoftDirty = "soft-dirty" // /proc/PID/clear_refs, where the kernel has it
	Untracked = "none"       // everything that differs from the memory file, each time
)

// Tracker reports writes since a point in time. Not safe for concurrent use.
type Tracker interface {
	// Name of the mechanism.
	Name() string
	// Collect returns the pages that may have changed since the last Collect
	// and starts anew, atomically for each page: a write is in this result or
	// in the next. The first Collect of a new tracker returns every page that
	// differs from the memory file. Pages that fell back to the memory file's
	// contents (discarded by the VMM) count as changed. The guest may be
	// running. After an error nothing is lost: the next Collect reports more.
	Collect(ctx context.Context) (*PageSet, error)
	// Recollect is Collect for the second look of a pre-copy, a moment after a
	// Collect and under the pause. It is faster (uffd-wp: 1.5 ms for each GiB
	// that is in use, against 15) because it does not look for discarded pages;
	// the next Collect reports those.
	Recollect(ctx context.Context) (*PageSet, error)
	// Return gives back pages of an earlier Collect that did not become part
	// of a durable commit; the next Collect reports them again.
	Return(pages *PageSet)
	// State is what a later process needs to go on, see the package comment.
	State() State
	// Close releases this process's descriptors; the tracking goes on.
	Close() error
}

// State of a tracker, to be stored as JSON.
type State struct {
	Mechanism string `json:"mechanism"`
	// FD is the userfaultfd's number in the VMM process (uffd-wp only).
	FD int `json:"fd,omitempty"`
	// Collected: the mechanism has a point in time to count from.
	Collected bool `json:"collected,omitempty"`
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
// pays nothing. The best moment for it is right after the launch, see
// inject_amd64.go.
func (m *Memory) Track(ctx context.Context) (Tracker, error) {
	return m.track(ctx, UffdWP, SoftDirty, Untracked)
}

func (m *Memory) track(ctx context.Context, mechanisms ...string) (Tracker, error) {
	var reasons []error
	for _, name := range mechanisms {
		var t Tracker
		var err error
		switch name {
		case UffdWP:
			t, err = m.trackUffd(ctx)
		case SoftDirty:
			t, err = m.trackSoftDirty()
		default:
			t = &untracked{mem: m}
		}
		if err == nil {
			return t, nil
		}
		if errors.Is(err, ErrGone) || ctx.Err() != nil {
			return nil, fmt.Errorf("track guest memory of process %d: %w", m.target.PID, err)
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", name, err))
	}
	return nil, fmt.Errorf("track guest memory of process %d: %w", m.target.PID, errors.Join(reasons...))
}

// Resume picks up the tracker that an earlier process left.
func (m *Memory) Resume(ctx context.Context, s State) (Tracker, error) {
	l, err := s.ledger()
	if err != nil {
		return nil, fmt.Errorf("resume tracking of process %d: %w", m.target.PID, errors.Join(ErrTracker, err))
	}
	var t Tracker
	switch s.Mechanism {
	case UffdWP:
		t, err = m.resumeUffd(ctx, s, l)
	case SoftDirty:
		t, err = m.resumeSoftDirty(l)
	case Untracked:
		t = &untracked{mem: m, ledger: l}
	default:
		err = fmt.Errorf("%w: unknown mechanism %q", ErrTracker, s.Mechanism)
	}
	if err != nil {
		return nil, fmt.Errorf("resume tracking of process %d: %w", m.target.PID, err)
	}
	return t, nil
}

// ledger is the part of a tracker that outlives the process.
type ledger struct {
	known     PageSet // anonymous at the last Collect
	pending   PageSet // returned
	collected bool    // the mechanism counts from a Collect
	uncertain bool
}

func (l *ledger) Return(pages *PageSet) { l.pending.Union(pages) }

// exact reports whether what the mechanism calls written is all there is.
func (l *ledger) exact() bool { return l.collected && !l.uncertain }

// add makes the result of a Recollect.
func (l *ledger) add(written *PageSet) *PageSet {
	l.known.Union(written)
	changed := written.Clone()
	changed.Union(&l.pending)
	l.pending = PageSet{}
	return changed
}

// settle makes the result of a Collect from what the mechanism saw.
func (l *ledger) settle(anonymous, written *PageSet) *PageSet {
	changed := l.known.Clone()
	if !l.exact() {
		changed.Union(anonymous)
	} else {
		changed.Subtract(anonymous) // what is left was discarded
		changed.Union(written)
	}
	changed.Union(&l.pending)
	l.known, l.pending = *anonymous, PageSet{}
	l.collected, l.uncertain = true, false
	return changed
}

func (l *ledger) state(mechanism string) State {
	s := State{Mechanism: mechanism, Collected: l.collected, Uncertain: l.uncertain}
	if l.known.Len() > 0 {
		s.Known = l.known.marshal()
	}
	if l.pending.Len() > 0 {
		s.Pending = l.pending.marshal()
	}
	return s
}

func (s State) ledger() (ledger, error) {
	l := ledger{collected: s.Collected, uncertain: s.Uncertain}
	if len(s.Known) > 0 {
		if err := l.known.UnmarshalBinary(s.Known); err != nil {
			return l, fmt.Errorf("known pages: %w", err)
		}
	}
	if len(s.Pending) > 0 {
		if err := l.pending.UnmarshalBinary(s.Pending); err != nil {
			return l, fmt.Errorf("pending pages: %w", err)
		}
	}
	return l, nil
}

// untracked is the mechanism of last resort.
type untracked struct {
	mem *Memory
	ledger
}

func (u *untracked) Name() string { return Untracked }
func (u *untracked) State() State { return u.state(Untracked) }
func (u *untracked) Close() error { return nil }

func (u *untracked) Collect(ctx context.Context) (*PageSet, error) {
	anonymous, err := u.mem.Written(ctx)
	if err != nil {
		return nil, err
	}
	return u.settle(anonymous, anonymous), nil
}

func (u *untracked) Recollect(ctx context.Context) (*PageSet, error) { return u.Collect(ctx) }
