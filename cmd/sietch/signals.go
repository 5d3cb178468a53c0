package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// signals decides what becomes of the signals this process gets.
//
// The first SIGINT or SIGTERM cancels the command, which then undoes what it
// has begun; the second ends the process at once. While an exec runs, signals
// go to the process in the guest instead, and only insistence (three within a
// second) ends this one.
type signals struct {
	cancel   func()
	leaveNow func()
	arrived  chan os.Signal
	done     chan struct{}

	mu        sync.Mutex
	forwarded chan<- syscall.Signal
	cancelled bool
	recent    []time.Time
}

// forwardable are the signals with a meaning for a process in the guest.
// SIGHUP is not: without its terminal a client is gone, and the guest ends what
// it left behind.
var forwardable = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// insistence is how many signals, within insistencePeriod, end a process that
// forwards them.
const (
	insistence       = 3
	insistencePeriod = time.Second
)

func watchSignals(cancel, leaveNow func()) *signals {
	s := &signals{
		cancel:   cancel,
		leaveNow: leaveNow,
		arrived:  make(chan os.Signal, 16),
		done:     make(chan struct{}),
	}
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		// nohup and background jobs of a shell script start with these ignored,
		// and mean it.
		if !signal.Ignored(sig) {
			signal.Notify(s.arrived, sig)
		}
	}
	// Caught, so that a write fails instead; children do not inherit that.
	signal.Notify(s.arrived, syscall.SIGPIPE)
	go func() {
		defer close(s.done)
		for sig := range s.arrived {
			if sig != syscall.SIGPIPE {
				s.handle(sig.(syscall.Signal), time.Now())
			}
		}
	}()
	return s
}

// stop gives signals their default meaning back.
func (s *signals) stop() {
	signal.Stop(s.arrived)
	close(s.arrived)
	<-s.done
}

// forward sends signals to to until the returned function is called.
func (s *signals) forward(to chan<- syscall.Signal) (end func()) {
	s.mu.Lock()
	s.forwarded = to
	s.mu.Unlock()
	for _, sig := range forwardable {
		if !signal.Ignored(sig) {
			signal.Notify(s.arrived, sig)
		}
	}
	return func() {
		s.mu.Lock()
		s.forwarded = nil
		s.mu.Unlock()
	}
}

func (s *signals) handle(sig syscall.Signal, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forwarded != nil && sig != syscall.SIGHUP {
		select {
		case s.forwarded <- sig:
		default: // nobody reads: the guest does not answer
		}
		if (sig == syscall.SIGINT || sig == syscall.SIGTERM) && s.insists(now) {
			s.leaveNow()
		}
		return
	}
	if s.cancelled {
		s.leaveNow()
		return
	}
	s.cancelled = true
	s.cancel()
}

// insists says whether the user means this process and not the one in the guest.
func (s *signals) insists(now time.Time) bool {
	s.recent = append(s.recent, now)
	if len(s.recent) > insistence {
		s.recent = s.recent[1:]
	}
	return len(s.recent) == insistence && now.Sub(s.recent[0]) <= insistencePeriod
}
