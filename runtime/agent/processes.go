package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// listLimit bounds what is taken of a guest's lists.
const listLimit = 1 << 20

// StartError says that a command cannot be run, as a shell would say it.
type StartError struct{ proto.ExitStatus }

func (e *StartError) Error() string { return e.ExitStatus.Error }

// Start starts a process in the background, which the guest keeps with its
// output, and returns once it runs. A *StartError means that the command cannot
// be run.
func (c *Client) Start(ctx context.Context, req proto.ExecRequest) (proto.Process, error) {
	var p proto.Process
	if err := c.do(ctx, http.MethodPost, "/v1/processes/start", rawWhereNeeded(req), &p); err != nil {
		return p, err
	}
	if p.ID == "" && p.Exit != nil {
		return p, &StartError{*p.Exit}
	}
	return p, nil
}

// Processes lists those in the background, oldest first.
func (c *Client) Processes(ctx context.Context) ([]proto.Process, error) {
	var list []proto.Process
	err := c.records(ctx, "/v1/processes/list", struct{}{}, func(t proto.FrameType, payload []byte) error {
		if len(list) >= listLimit {
			return errors.New("list of the guest does not end")
		}
		list = append(list, proto.Process{})
		return record(t, payload, &list[len(list)-1])
	})
	return list, err
}

// Process describes one.
func (c *Client) Process(ctx context.Context, id string) (proto.Process, error) {
	var p proto.Process
	return p, c.do(ctx, http.MethodPost, "/v1/processes/inspect", proto.ProcessRequest{ID: id}, &p)
}

// Wait returns when a process has ended.
func (c *Client) Wait(ctx context.Context, id string) (proto.Process, error) {
	var p proto.Process
	err := c.records(ctx, "/v1/processes/wait", proto.ProcessRequest{ID: id}, func(t proto.FrameType, payload []byte) error {
		return record(t, payload, &p)
	})
	if err == nil && p.Running {
		err = fmt.Errorf("%w: the wait ended before the process", proto.ErrFrame)
	}
	return p, err
}

// Output writes what a process has written and returns the offset to go on
// from, also with an error. skipped, if set, is called where bytes are missing
// that the guest no longer had.
func (c *Client) Output(ctx context.Context, req proto.OutputRequest, w io.Writer, skipped func(bytes int64)) (int64, error) {
	at := req.Offset
	err := c.records(ctx, "/v1/processes/output", req, func(t proto.FrameType, payload []byte) error {
		switch t {
		case proto.FrameOffset:
			to, err := proto.Offset(payload)
			if err != nil {
				return err
			}
			if to > at && skipped != nil {
				skipped(to - at)
			}
			at = to
		case proto.FrameData:
			n, err := w.Write(payload)
			at += int64(n)
			if err != nil {
				return fmt.Errorf("write output: %w", err)
			}
		default:
			return unexpected(t)
		}
		return nil
	})
	return at, err
}

// Signal signals a process and its group; one that has ended is left alone.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	return c.do(ctx, http.MethodPost, "/v1/processes/signal", proto.ProcessSignalRequest{ID: id, Signal: int(sig)}, nil)
}

// Forget removes an ended process and its output.
func (c *Client) Forget(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/processes/remove", proto.ProcessRequest{ID: id}, nil)
}
