package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// qmp is a connection to QEMU's monitor. One command at a time; not safe for
// concurrent use.
//
// QEMU reads what it is sent byte by byte, with some eight system calls for each
// (7.2 to 10.0: monitor_can_read says 1), so that a command costs by its length:
// under a pause every question that can be left out is.
type qmp struct {
	conn *net.UnixConn
	in   *bufio.Reader
}

// qmpError is an error QEMU answered with.
type qmpError struct {
	Command string `json:"-"`
	Class   string `json:"class"`
	Desc    string `json:"desc"`
}

func (e *qmpError) Error() string { return e.Command + ": " + e.Desc }

// dialQMP connects and negotiates. While another process is being served it
// waits.
func dialQMP(ctx context.Context, path string) (*qmp, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to QEMU: %w", err)
	}
	q := &qmp{conn: conn.(*net.UnixConn), in: bufio.NewReader(conn)}
	if err := q.negotiate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to QEMU: %w", err), q.Close())
	}
	return q, nil
}

func (q *qmp) Close() error { return q.conn.Close() }

// negotiate reads the greeting and leaves the mode in which nothing but
// negotiation is answered.
func (q *qmp) negotiate(ctx context.Context) error {
	done := q.bound(ctx)
	defer done()
	var greeting struct{ QMP json.RawMessage }
	if err := q.read(&greeting); err != nil {
		return contextual(ctx, err)
	}
	if greeting.QMP == nil {
		return errors.New("the other end does not speak QMP")
	}
	return q.run(ctx, "qmp_capabilities", nil, nil, nil)
}

// bound makes reads and writes end with ctx.
func (q *qmp) bound(ctx context.Context) (done func()) {
	q.conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { q.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// contextual says that ctx ended where that is why I/O failed.
func contextual(ctx context.Context, err error) error {
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (q *qmp) read(v any) error {
	line, err := q.in.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// run executes a command and decodes its answer into out, which may be nil. A
// file, when given, travels with the command.
//
// When ctx ends in the middle the connection is of no use any more: the answer
// may still come.
func (q *qmp) run(ctx context.Context, command string, args any, file *os.File, out any) error {
	done := q.bound(ctx)
	defer done()
	if err := ctx.Err(); err != nil {
		return err
	}
	request := map[string]any{"execute": command}
	if args != nil {
		request["arguments"] = args
	}
	line, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode %s: %w", command, err)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if _, _, err := q.conn.WriteMsgUnix(append(line, '\n'), rights, nil); err != nil {
		return fmt.Errorf("%s: %w", command, contextual(ctx, err))
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *qmpError       `json:"error"`
			Event  string          `json:"event"`
		}
		if err := q.read(&answer); err != nil {
			return fmt.Errorf("%s: %w", command, contextual(ctx, err))
		}
		switch {
		case answer.Error != nil:
			answer.Error.Command = command
			return answer.Error
		case answer.Return != nil:
			if out == nil {
				return nil
			}
			if err := json.Unmarshal(answer.Return, out); err != nil {
				return fmt.Errorf("%s: decode answer: %w", command, err)
			}
			return nil
		}
		// An event. What there is to know about a machine is asked for, since
		// most events happen while nobody is connected.
	}
}

// status is QEMU's run state (RunState in its schema).
type status struct {
	Running bool   `json:"running"`
	Status  string `json:"status"`
}

func (q *qmp) status(ctx context.Context) (s status, err error) {
	err = q.run(ctx, "query-status", nil, nil, &s)
	return s, err
}
