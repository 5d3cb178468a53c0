package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers the host. Its methods are safe for concurrent use.
type Server struct {
	o      Options
	log    *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	identity sync.Mutex // held while an identity is applied
	table    *table     // processes in the background

	nullOnce sync.Once
	nullFile *os.File

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	inUse     chan struct{} // closed and replaced by every request that shows the machine to be in use
	wg        sync.WaitGroup
}

// New returns a server that waits for Serve.
func New(o Options) *Server {
	if o.Start == nil {
		o.Start = startDirectly
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{
		o: o, log: log, ctx: ctx, cancel: cancel, table: newTable(),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[*conn]struct{}),
		inUse:     make(chan struct{}),
	}
}

// Serve accepts connections from ln, which it closes at the end, until Close
// (then it returns nil) or until ln breaks. It may be called for several
// listeners.
func (s *Server) Serve(ln net.Listener) error {
	defer ln.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.listeners[ln] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
	}()

	pause := time.Duration(0)
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			s.accept(nc)
		case s.ctx.Err() != nil:
			return nil
		case passes(err):
			// Out of descriptors or memory: the agent is the only way into the
			// machine, so it waits for better times instead of giving up.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("accept", "err", err)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
				return nil
			}
		default:
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		}
	}
}

// passes reports whether accept may succeed later on the same listener.
func passes(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED, unix.EINTR, unix.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) accept(nc net.Conn) {
	if !s.allowed(nc.RemoteAddr()) {
		abort(nc)
		return
	}
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		abort(nc)
		return
	}
	s.conns[c] = struct{}{}
	s.wg.Go(func() {
		defer func() {
			// The agent may be PID 1: a bug in one request must not end the machine.
			if r := recover(); r != nil {
				s.log.Error("panic", "value", r, "stack", string(debug.Stack()))
				abort(nc)
			}
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
		c.serve()
	})
}

func (s *Server) allowed(a net.Addr) bool {
	if s.o.Allow == nil {
		return true
	}
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, ok := netip.AddrFromSlice(t.IP)
	return ok && s.o.Allow(ip.Unmap())
}

// Close stops accepting, drops all connections, ends the processes of streams
// that are still attached, and waits for both. Detached processes go on.
// Idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for ln := range s.listeners {
		ln.Close()
	}
	for c := range s.conns {
		abort(c.nc)
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.nullOnce.Do(func() {}) // nobody opens it from here
	if s.nullFile != nil {
		s.nullFile.Close()
	}
	return nil
}

// detachInherited drops every connection but keep. Their streams' processes go
// on without a client.
func (s *Server) detachInherited(keep *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c != keep {
			c.markInherited()
			abort(c.nc)
		}
	}
}

// noteUse records that the host has handed the machine out, which it does only
// after the identity was set: connections that were reset are not inherited.
func (s *Server) noteUse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.inUse)
	s.inUse = make(chan struct{})
}

func (s *Server) nextUse() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse
}

// null is the stdin of processes that have none, opened once. A nil lets
// os/exec try for itself and report why it cannot.
func (s *Server) null() io.Reader {
	s.nullOnce.Do(func() {
		if fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			s.nullFile = os.NewFile(uintptr(fd), os.DevNull)
		}
	})
	if s.nullFile == nil {
		return nil
	}
	return s.nullFile
}

// abort closes a connection with a reset: at once, and with nothing left to
// retransmit to a peer that may not exist.
func abort(nc net.Conn) {
	if t, ok := nc.(interface{ SetLinger(sec int) error }); ok {
		t.SetLinger(0)
	}
	nc.Close()
}
