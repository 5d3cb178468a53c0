package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// serveStart starts a process in the background.
func (c *conn) serveStart(req *request) bool {
	r, err := decodeExec(req.body)
	if err != nil {
		return c.fail(coded(proto.CodeInvalid, "read request: %w", err))
	}
	d, err := c.s.startBackground(r)
	if err != nil {
		return c.fail(err)
	}
	return c.okJSON(d)
}

// startBackground answers with an exit status and no id for a command that
// cannot be run.
func (s *Server) startBackground(r proto.ExecRequest) (proto.Process, error) {
	r.Stdin, r.TTY = false, false
	cmd, who, cannot, err := s.command(r)
	if err != nil {
		return proto.Process{}, err
	}
	if cannot != nil {
		return proto.Process{Exit: cannot}, nil
	}
	b, err := s.table.add(cmd.Args)
	if err != nil {
		return proto.Process{}, err
	}
	p := &process{
		timeout: time.Duration(r.TimeoutMS) * time.Millisecond, keep: true,
		emit:   func(_ proto.FrameType, buf []byte) { s.table.write(b, buf[proto.FrameHeader:]) },
		exited: make(chan struct{}), ended: make(chan struct{}),
	}
	theirs, err := p.merged(cmd, who)
	if err != nil {
		s.table.forget(b)
		return proto.Process{}, fmt.Errorf("prepare %s: %w", cmd.Args[0], err)
	}
	p.pid, p.wait, err = s.o.Start(cmd)
	closeAll(theirs)
	if err != nil {
		p.release()
		s.table.forget(b)
		if cannot := startFailure(cmd.Args[0], err); cannot != nil {
			return proto.Process{Exit: cannot}, nil
		}
		return proto.Process{}, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	s.table.mu.Lock()
	b.p = p
	d := b.describe()
	s.table.mu.Unlock()
	go func() { // ends with the process, as Detach does
		p.run()
		s.table.finish(b)
	}()
	return d, nil
}

// decodeProcess reads the body of a request about one process.
func (c *conn) decodeProcess(req *request, v any, id *string) (*background, error) {
	if err := json.Unmarshal(req.body, v); err != nil {
		return nil, coded(proto.CodeInvalid, "read request: %w", err)
	}
	return c.s.table.get(*id)
}

func (c *conn) serveProcesses(*request) bool {
	list := c.s.table.all()
	return c.serveRecords(func(_ context.Context, fw *proto.FrameWriter) error {
		for _, d := range list {
			if err := sendRecord(fw, d); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *conn) serveInspect(req *request) bool {
	var r proto.ProcessRequest
	b, err := c.decodeProcess(req, &r, &r.ID)
	if err != nil {
		return c.fail(err)
	}
	c.s.table.mu.Lock()
	d := b.describe()
	c.s.table.mu.Unlock()
	return c.okJSON(d)
}

func (c *conn) serveWait(req *request) bool {
	var r proto.ProcessRequest
	b, err := c.decodeProcess(req, &r, &r.ID)
	if err != nil {
		return c.fail(err)
	}
	t := c.s.table
	return c.serveRecords(func(ctx context.Context, fw *proto.FrameWriter) error {
		for {
			t.mu.Lock()
			d, next := b.describe(), b.next()
			t.mu.Unlock()
			if !d.Running {
				return sendRecord(fw, d)
			}
			select {
			case <-next: // output, mostly
				select {
				case <-b.p.ended:
				case <-ctx.Done():
					return ctx.Err()
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

func (c *conn) serveOutput(req *request) bool {
	var r proto.OutputRequest
	b, err := c.decodeProcess(req, &r, &r.ID)
	if err == nil && (r.Offset < 0 || r.Limit < 0) {
		err = coded(proto.CodeInvalid, "offset and limit: negative")
	}
	if err != nil {
		return c.fail(err)
	}
	return c.serveRecords(func(ctx context.Context, fw *proto.FrameWriter) error {
		return c.s.table.send(ctx, b, r, fw)
	})
}

// send copies output, at the pace of the reader: what is dropped meanwhile it
// does not get.
func (t *table) send(ctx context.Context, b *background, r proto.OutputRequest, fw *proto.FrameWriter) error {
	buf := make([]byte, proto.FrameHeader+32<<10)
	at, sent, told := r.Offset, int64(0), int64(-1)
	for {
		want := int64(len(buf) - proto.FrameHeader)
		if r.Limit > 0 {
			want = min(want, r.Limit-sent)
		}
		t.mu.Lock()
		at = min(max(at, b.out.from()), max(b.out.total, b.out.from()))
		n := b.out.read(at, buf[proto.FrameHeader:proto.FrameHeader+want])
		over := b.ended != nil || b.removed
		next := b.next()
		t.mu.Unlock()

		if at != told {
			if err := fw.Send(proto.FrameOffset, binary.BigEndian.AppendUint64(nil, uint64(at))); err != nil {
				return err
			}
			told = at
		}
		if n > 0 {
			if err := fw.SendBuffer(proto.FrameData, buf[:proto.FrameHeader+n]); err != nil {
				return err
			}
			at, sent, told = at+int64(n), sent+int64(n), at+int64(n)
		}
		switch {
		case r.Limit > 0 && sent >= r.Limit:
			return nil
		case n > 0:
			continue
		case over || !r.Follow:
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *conn) serveSignal(req *request) bool {
	var r proto.ProcessSignalRequest
	b, err := c.decodeProcess(req, &r, &r.ID)
	if err == nil && (r.Signal < 1 || r.Signal > 64) {
		err = coded(proto.CodeInvalid, "signal %d: not one of 1 to 64", r.Signal)
	}
	if err != nil {
		return c.fail(err)
	}
	b.p.signal(unix.Signal(r.Signal))
	return c.ok([]byte("{}"))
}

func (c *conn) serveForget(req *request) bool {
	var r proto.ProcessRequest
	_, err := c.decodeProcess(req, &r, &r.ID)
	if err == nil {
		err = c.s.table.remove(r.ID)
	}
	if err != nil {
		return c.fail(err)
	}
	return c.ok([]byte("{}"))
}
