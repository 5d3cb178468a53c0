package runtime

import (
	"errors"
	"sync"
	"time"

	"github.com/sietch-dev/sietch/runtime/agent"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

const (
	// lineIdle is how long a line nobody uses is kept. To dial an emulated guest
	// costs as much as a short command in it.
	lineIdle = 30 * time.Second
	// lastWords is how long a machine's connections are read after its end. What
	// it had sent before is here already.
	lastWords = 300 * time.Millisecond
)

// line is a client of one running machine, shared by all who talk to its guest.
// It ends soon after the machine does, and its calls with it.
type line struct {
	*agent.Client
	machine *process.Process
	closed  chan struct{}
	owner   *lines
	handle  vmm.Handle
	users   int         // owner.mu
	expiry  *time.Timer // owner.mu; while there are no users
}

// lines are those of one engine, by the process of the machine: the same sandbox
// after a checkout is another one. The zero value is ready.
type lines struct {
	mu sync.Mutex
	m  map[vmm.Handle]*line
}

// take returns the line to a machine, which dial makes if there is none. The
// caller closes it.
func (ls *lines) take(h vmm.Handle, dial func() (*agent.Client, error)) (*line, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.m[h]; l != nil {
		if l.expiry != nil {
			l.expiry.Stop()
			l.expiry = nil
		}
		l.users++
		return l, nil
	}
	machine, err := process.Find(h, "")
	if err != nil {
		return nil, err
	}
	c, err := dial()
	if err != nil {
		return nil, errors.Join(err, machine.Release())
	}
	l := &line{Client: c, machine: machine, closed: make(chan struct{}), owner: ls, handle: h, users: 1}
	if ls.m == nil {
		ls.m = map[vmm.Handle]*line{}
	}
	ls.m[h] = l
	go l.attend()
	return l, nil
}

// line returns the line to the machine a record has; the caller closes it.
func (e *Local) line(r *record) (*line, error) {
	return e.lines.take(*r.Handle, func() (*agent.Client, error) { return e.dialWithin(r.ID, e.answerTimeout()) })
}

// attend ends the line after its machine.
func (l *line) attend() {
	select {
	case <-l.machine.Done():
	case <-l.closed:
		return
	}
	l.owner.forget(l, false)
	select {
	case <-time.After(lastWords):
		l.Client.Close()
	case <-l.closed:
	}
}

// Close gives the line back.
func (l *line) Close() error {
	ls := l.owner
	ls.mu.Lock()
	l.users--
	last := l.users == 0
	if last && ls.m[l.handle] == l {
		last = false
		l.expiry = time.AfterFunc(lineIdle, func() { ls.forget(l, true) })
	}
	ls.mu.Unlock()
	if last {
		return l.end()
	}
	return nil
}

// end is called once, by whoever finds the line without users and forgotten.
func (l *line) end() error {
	close(l.closed)
	return errors.Join(l.Client.Close(), l.machine.Release())
}

// forget takes a line out of use, or only one without users; its last user ends
// it, or forget does.
func (ls *lines) forget(l *line, unused bool) error {
	ls.mu.Lock()
	idle := l.users == 0
	if ls.m[l.handle] != l || unused && !idle {
		ls.mu.Unlock()
		return nil
	}
	delete(ls.m, l.handle)
	if idle {
		l.expiry.Stop()
	}
	ls.mu.Unlock()
	if idle {
		return l.end()
	}
	return nil
}

// hush drops the connections to a machine that no call is using.
func (ls *lines) hush(h vmm.Handle) {
	ls.mu.Lock()
	l := ls.m[h]
	ls.mu.Unlock()
	if l != nil {
		l.CloseIdle()
	}
}

// close ends the lines nobody uses; those in use end with their last call.
func (ls *lines) close() error {
	ls.mu.Lock()
	all := make([]*line, 0, len(ls.m))
	for _, l := range ls.m {
		all = append(all, l)
	}
	ls.mu.Unlock()
	var errs []error
	for _, l := range all {
		errs = append(errs, ls.forget(l, false))
	}
	return errors.Join(errs...)
}
