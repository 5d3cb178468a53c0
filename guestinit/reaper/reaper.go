package reaper

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// Reaper waits for every child of this process.
type Reaper struct {
	mu       sync.Mutex
	running  map[int]*Process
	starting int           // Start calls between fork and registration
	starts   uint64        // Start calls so far
	early    map[int]early // ended while starting > 0, not registered

	signals chan os.Signal
	stopped chan struct{}
}

// early is a status that came before its process was registered.
type early struct {
	status unix.WaitStatus
	starts uint64 // value of Reaper.starts then
}

// Process is a child started through the Reaper.
type Process struct {
	PID    int
	done   chan struct{}
	status unix.WaitStatus
}

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is the wait status; meaningful after Done.
func (p *Process) Status() unix.WaitStatus { return p.status }

// ExitCode is the code as a shell gives it: the process's own, or 128+n for a
// signal. Meaningful after Done.
func (p *Process) ExitCode() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// New starts reaping. One Reaper a process.
func New() (*Reaper, error) {
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("become subreaper: %w", err)
		}
	}
	r := &Reaper{
		running: make(map[int]*Process),
		early:   make(map[int]early),
		signals: make(chan os.Signal, 1),
		stopped: make(chan struct{}),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	go r.loop()
	return r, nil
}

// Start starts cmd. The standard streams of cmd must be nil or *os.File: there
// is no Wait that could join the copying goroutines anything else would need.
// The context of an exec.CommandContext is not watched.
func (r *Reaper) Start(cmd *exec.Cmd) (*Process, error) {
	r.mu.Lock()
	r.starting++
	r.starts++
	number := r.starts
	r.mu.Unlock()

	err := cmd.Start()

	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	defer func() {
		if r.starting == 0 {
			clear(r.early)
		}
	}()
	if err != nil {
		return nil, err
	}
	p := &Process{PID: cmd.Process.Pid, done: make(chan struct{})}
	_ = cmd.Process.Release() // the pid is the reaper's from here
	// An entry older than this call is another process's that had the same pid.
	if e, ended := r.early[p.PID]; ended && e.starts >= number {
		delete(r.early, p.PID)
		p.end(e.status)
		return p, nil
	}
	r.running[p.PID] = p
	return p, nil
}

// Signal sends sig to the process, or does nothing when it was reaped already:
// its pid may be another's by now.
func (r *Reaper) Signal(p *Process, sig unix.Signal) error {
	return r.kill(p, p.PID, sig)
}

// SignalGroup sends sig to the process group led by p, while p is not reaped.
func (r *Reaper) SignalGroup(p *Process, sig unix.Signal) error {
	return r.kill(p, -p.PID, sig)
}

func (r *Reaper) kill(p *Process, target int, sig unix.Signal) error {
	r.mu.Lock() // reaping takes the same lock, so the pid cannot be reused meanwhile
	defer r.mu.Unlock()
	if r.running[p.PID] != p {
		return nil
	}
	if err := unix.Kill(target, sig); err != nil && err != unix.ESRCH {
		return fmt.Errorf("send %s to %d: %w", unix.SignalName(sig), target, err)
	}
	return nil
}

// Alone reports whether this process has no children left, running or not yet
// reaped.
func (r *Reaper) Alone() bool {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == unix.ECHILD
}

// Close stops reaping. Processes still running are not touched.
func (r *Reaper) Close() error {
	signal.Stop(r.signals)
	close(r.signals)
	<-r.stopped
	return nil
}

func (r *Reaper) loop() {
	defer close(r.stopped)
	r.reap() // children that ended before the handler was there
	for range r.signals {
		r.reap()
	}
}

// reap collects every child that has ended.
func (r *Reaper) reap() {
	for {
		r.mu.Lock()
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		if p := r.running[pid]; p != nil {
			delete(r.running, pid)
			p.end(status)
		} else if r.starting > 0 {
			r.early[pid] = early{status, r.starts}
		}
		r.mu.Unlock()
	}
}

func (p *Process) end(status unix.WaitStatus) {
	p.status = status
	close(p.done)
}
