package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Size of a terminal.
type Size struct{ Rows, Cols uint16 }

// IO is what an exec is connected to. Nil fields are nothing: stdin ends at
// once, output is discarded.
//
// Exec reads Stdin only if the request says Stdin or TTY, in a goroutine that may
// be in a Read when Exec returns; that Read cannot be taken back, and what it
// yields is lost. It stops receiving from the channels when it returns and
// never closes them; the caller may.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
	Signals        <-chan syscall.Signal
	// Started, if set, is called with the guest's pid once the process runs.
	Started func(pid int)
}

// Exec runs a process in the guest and returns its end. A process that ran and
// failed, or could not be started as a shell would say it (126, 127), is an
// ExitStatus without an error; an error means that the end is not known. When
// ctx ends or an output cannot be written, the process is killed unless
// req.Detach is set. Output is read no faster than it can be written.
//
// With req.Identity set, Exec waits for a guest that does not answer yet, as
// Identify does, and the process starts after the identity was applied.
func (c *Client) Exec(ctx context.Context, req proto.ExecRequest, sio IO) (proto.ExitStatus, error) {
	done, err := c.enter()
	if err != nil {
		return proto.ExitStatus{}, err
	}
	defer done()

	dial := dialer(c.o.Dial)
	if req.Identity != nil {
		dial = c.dialOn(restored)
		id := *req.Identity
		id.Time = time.Now()
		req.Identity = &id
		if id.Fork {
			c.CloseIdle()
		}
	}
	k, err := c.openStream(ctx, "/v1/exec", proto.UpgradeExec, rawWhereNeeded(req), dial)
	if err != nil {
		return proto.ExitStatus{}, err
	}
	s := newExecStream(k, sio)
	if req.Stdin || req.TTY {
		go s.sendStdin() // see IO.Stdin
	}
	status, err := s.receive()
	if err != nil {
		c.giveUp(k)
		s.stop()
		var local *localError
		if errors.As(err, &local) {
			return proto.ExitStatus{}, local.err
		}
		return proto.ExitStatus{}, c.broken(ctx, err)
	}
	err = s.stop()
	c.closeStream(k, s.gate)
	return status, err
}

// rawWhereNeeded moves what JSON strings cannot carry.
func rawWhereNeeded(req proto.ExecRequest) proto.ExecRequest {
	raw := func(s []string) [][]byte {
		if !slices.ContainsFunc(s, func(s string) bool { return !utf8.ValidString(s) }) {
			return nil
		}
		b := make([][]byte, len(s))
		for i := range s {
			b[i] = []byte(s[i])
		}
		return b
	}
	if b := raw(req.Args); b != nil {
		req.Args, req.RawArgs = nil, b
	}
	if b := raw(req.Env); b != nil {
		req.Env, req.RawEnv = nil, b
	}
	return req
}

// localError is about the caller's end of a stream, not about the connection.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

// execStream is an exec that runs. receive is the caller's goroutine; control
// and sendStdin send.
type execStream struct {
	io   IO
	fr   *proto.FrameReader
	fw   *proto.FrameWriter
	gate *gate

	mu       sync.Mutex
	room     sync.Cond // window has grown, or ended
	window   int       // bytes of stdin the guest will take
	ended    bool
	stdinErr error

	controls sync.WaitGroup
	end      chan struct{} // closed with ended
}

func newExecStream(k *conn, sio IO) *execStream {
	g := &gate{w: k.nc}
	s := &execStream{
		io: sio, fr: proto.NewFrameReader(k.br), fw: proto.NewFrameWriter(g), gate: g,
		window: proto.StdinWindow, end: make(chan struct{}),
	}
	s.room.L = &s.mu
	if s.io.Stdout == nil {
		s.io.Stdout = io.Discard
	}
	if s.io.Stderr == nil {
		s.io.Stderr = io.Discard
	}
	if sio.Resize != nil || sio.Signals != nil {
		s.controls.Go(s.control)
	}
	return s
}

// stop ends the senders and returns what went wrong with stdin before. A
// sender that is in a Read of stdin ends after it.
func (s *execStream) stop() error {
	s.mu.Lock()
	s.ended = true
	close(s.end)
	s.room.Broadcast()
	err := s.stdinErr
	s.mu.Unlock()
	s.controls.Wait()
	return err
}

func (s *execStream) receive() (proto.ExitStatus, error) {
	var status proto.ExitStatus
	for {
		t, payload, err := s.fr.Next()
		if err != nil {
			return status, eofInside(err)
		}
		switch t {
		case proto.FrameStdout:
			_, err = s.io.Stdout.Write(payload)
		case proto.FrameStderr:
			_, err = s.io.Stderr.Write(payload)
		case proto.FrameWindow:
			err = s.grow(payload)
		case proto.FrameStarted:
			pid, e := proto.Uint32(payload)
			if e == nil && s.io.Started != nil {
				s.io.Started(int(pid))
			}
			err = e
		case proto.FrameExit:
			if err = json.Unmarshal(payload, &status); err != nil {
				err = fmt.Errorf("%w: exit status: %w", proto.ErrFrame, err)
			}
			return status, err
		default:
			err = fmt.Errorf("%w: unexpected frame %q", proto.ErrFrame, byte(t))
		}
		if err != nil {
			if t == proto.FrameStdout || t == proto.FrameStderr {
				err = &localError{fmt.Errorf("write output: %w", err)}
			}
			return status, err
		}
	}
}

func (s *execStream) grow(payload []byte) error {
	n, err := proto.Uint32(payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.window += int(n); s.window > proto.StdinWindow {
		return fmt.Errorf("%w: more stdin taken than was sent", proto.ErrFrame)
	}
	s.room.Signal()
	return nil
}

// control forwards sizes and signals. That the connection is broken is for
// receive to notice.
func (s *execStream) control() {
	resize, signals := s.io.Resize, s.io.Signals
	for {
		select {
		case <-s.end:
			return
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			s.fw.SendUint32(proto.FrameResize, uint32(size.Rows)<<16|uint32(size.Cols))
		case sig, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			s.fw.Send(proto.FrameSignal, []byte{byte(sig)})
		}
	}
}

// sendStdin sends what the guest will take, and the end.
func (s *execStream) sendStdin() {
	if s.io.Stdin == nil {
		s.fw.Send(proto.FrameStdinEOF, nil)
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := s.io.Stdin.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			m := s.reserve(len(p))
			if m == 0 || s.fw.Send(proto.FrameStdin, p[:m]) != nil {
				return
			}
			p = p[m:]
		}
		if err == nil {
			continue
		}
		if err != io.EOF {
			s.mu.Lock()
			if !s.ended {
				s.stdinErr = fmt.Errorf("read stdin: %w", err)
			}
			s.mu.Unlock()
		}
		s.fw.Send(proto.FrameStdinEOF, nil)
		return
	}
}

// reserve waits for room in the window and takes up to n bytes of it; 0 is the
// end of the stream.
func (s *execStream) reserve(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.window == 0 && !s.ended {
		s.room.Wait()
	}
	if s.ended {
		return 0
	}
	n = min(n, s.window)
	s.window -= n
	return n
}
