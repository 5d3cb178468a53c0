package agent

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// resetGrace is how long a stream whose connection was reset may turn out to
// be one of before a restore. It is guest time, which stands still while the
// machine does.
const resetGrace = 5 * time.Second

// serveExec starts a process and carries its streams until it has ended or the
// client has gone.
func (c *conn) serveExec(req *request) bool {
	r, err := decodeExec(req.body)
	if err != nil {
		return c.fail(coded(proto.CodeInvalid, "read exec request: %w", err))
	}
	if r.Identity == nil {
		c.s.noteUse()
	} else if err := c.identify(*r.Identity); err != nil {
		return c.fail(err)
	}
	cmd, who, cannot, err := c.s.command(r)
	if err != nil {
		return c.fail(err)
	}
	st := &stream{c: c, out: &outbound{nc: c.nc}, detach: r.Detach}
	st.fw = proto.NewFrameWriter(st.out)
	if cannot != nil {
		return st.endWithout(*cannot)
	}

	p := &process{
		timeout: time.Duration(r.TimeoutMS) * time.Millisecond, emit: st.emit,
		exited: make(chan struct{}), ended: make(chan struct{}),
	}
	theirs, err := p.descriptors(cmd, r, who, func(n int) { st.fw.SendUint32(proto.FrameWindow, uint32(n)) })
	if err != nil {
		return c.fail(fmt.Errorf("prepare %s: %w", cmd.Args[0], err))
	}
	p.pid, p.wait, err = c.s.o.Start(cmd)
	closeAll(theirs)
	if err != nil {
		p.release()
		if cannot := startFailure(cmd.Args[0], err); cannot != nil {
			return st.endWithout(*cannot)
		}
		return c.fail(fmt.Errorf("start %s: %w", cmd.Args[0], err))
	}
	st.p = p
	return st.serve()
}

// stream is a process and the connection it is attached to, as long as it is.
type stream struct {
	c      *conn
	p      *process
	out    *outbound
	fw     *proto.FrameWriter // to out
	detach bool

	gone atomic.Bool // nobody reads: output is discarded
}

// endWithout answers for a process that could not be started.
func (st *stream) endWithout(x proto.ExitStatus) bool {
	_, err := st.out.Write(appendUpgrade(nil, proto.UpgradeExec))
	if err == nil {
		err = st.fw.Send(proto.FrameExit, appendExit(nil, x))
	}
	return err == nil && st.receive() == nil
}

// serve attaches a process that has just been started and reports whether the
// connection can carry another request.
func (st *stream) serve() bool {
	head := appendUpgrade(nil, proto.UpgradeExec)
	head = append(head, byte(proto.FrameStarted), 0, 0, 4)
	head = binary.BigEndian.AppendUint32(head, uint32(st.p.pid))
	if _, err := st.out.Write(head); err != nil {
		st.lost()
	}
	go st.run() // ends with the process, which may outlive the connection
	err := st.receive()
	if err == nil {
		<-st.p.ended
		return true
	}
	st.lost()
	st.end(isReset(err) || st.out.reset())
	return false
}

func (st *stream) run() {
	st.p.run()
	if st.gone.Load() {
		return
	}
	x := st.p.result
	if st.p.err != nil {
		// Only a bug in whoever reaps can lose a status; say so rather than 0.
		x = proto.ExitStatus{Code: exitLost, Error: "exit status was lost: " + st.p.err.Error()}
		st.c.s.log.Error("wait for child", "pid", st.p.pid, "err", st.p.err)
	}
	if err := st.fw.Send(proto.FrameExit, appendExit(nil, x)); err != nil {
		st.lost()
	}
}

func (st *stream) emit(t proto.FrameType, buf []byte) {
	if st.gone.Load() {
		return
	}
	if err := st.fw.SendBuffer(t, buf); err != nil {
		st.lost()
	}
}

// lost notes that the client cannot be reached. What becomes of the process is
// for serve to decide, whose read is about to end, too.
func (st *stream) lost() {
	if !st.gone.Swap(true) {
		st.c.nc.SetReadDeadline(time.Now().Add(time.Second))
	}
}

// receive takes frames from the client until it has seen the end.
func (st *stream) receive() error {
	fr := proto.NewFrameReader(st.c.br)
	for {
		t, payload, err := fr.Next()
		if err != nil {
			return err
		}
		if t == proto.FrameDone {
			return nil
		}
		if st.p == nil {
			continue // sent before it was known that nothing runs
		}
		if err := st.handle(t, payload); err != nil {
			return err
		}
	}
}

func (st *stream) handle(t proto.FrameType, payload []byte) error {
	p := st.p
	switch t {
	case proto.FrameStdin:
		if p.in == nil {
			return fmt.Errorf("%w: stdin for a process that was started without", proto.ErrFrame)
		}
		return p.in.put(payload)
	case proto.FrameStdinEOF:
		if p.in != nil {
			p.in.end()
		}
	case proto.FrameResize:
		rows, cols, err := proto.Resize(payload)
		if err != nil {
			return err
		}
		if p.tty != nil {
			resizeTerminal(p.tty, rows, cols) // fails only after the end
		}
	case proto.FrameSignal:
		if len(payload) != 1 || payload[0] == 0 {
			return fmt.Errorf("%w: malformed signal", proto.ErrFrame)
		}
		p.signal(unix.Signal(payload[0]))
	default:
		return fmt.Errorf("%w: unexpected frame %q", proto.ErrFrame, byte(t))
	}
	return nil
}

// end decides what becomes of the process after the client has gone, and does
// it. wasReset tells a connection that broke from one that the client ended.
func (st *stream) end(wasReset bool) {
	p := st.p
	abort(st.c.nc) // output may be blocked on a peer that talks nonsense
	if st.detach || st.c.isInherited() || p.hasExited() || wasReset && st.survives() {
		if p.in != nil && p.in.tty {
			return // an interactive shell would take the end of its input for "exit"
		}
		if p.in != nil {
			p.in.end()
		}
		return
	}
	p.kill(unix.SIGHUP)
	<-p.ended
}

// survives reports whether the connection was reset because the machine was
// restored where its client does not exist. It waits until that is known.
func (st *stream) survives() bool {
	grace := time.NewTimer(resetGrace)
	defer grace.Stop()
	select {
	case <-st.c.inherited:
		return true
	case <-st.p.exited:
		return true
	case <-st.c.s.nextUse():
	case <-st.c.s.ctx.Done():
	case <-grace.C:
	}
	return false
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
