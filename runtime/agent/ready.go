package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// defaultPoll is how often a guest that answers is asked whether it is ready.
const defaultPoll = 2 * time.Millisecond

// Status asks once.
func (c *Client) Status(ctx context.Context) (proto.Status, error) {
	var st proto.Status
	err := c.do(ctx, http.MethodGet, "/v1/status", nil, &st)
	return st, err
}

// WaitReady waits until the guest is ready, says why it never will be, or ctx
// ends; then the error wraps ErrUnreachable or ErrNotReady, whichever it was,
// and the cause of ctx's end. A guest that answers is asked every poll, 2 ms
// for zero.
func (c *Client) WaitReady(ctx context.Context, poll time.Duration) (proto.Status, error) {
	return c.untilReady(ctx, poll, booting, askStatus)
}

// Identify gives this copy of the machine its identity and returns when it has
// it and is ready. It waits for a guest that does not answer yet until ctx ends,
// as WaitReady does. The identity's time is set to that of sending.
func (c *Client) Identify(ctx context.Context, id proto.Identity) error {
	if id.Fork {
		c.CloseIdle() // the guest drops them
	}
	_, err := c.untilReady(ctx, 0, restored, func() (call, error) {
		id.Time = time.Now()
		body, err := json.Marshal(id)
		return call{method: http.MethodPost, path: "/v1/identity", body: body}, err
	})
	return err
}

// Sync returns when everything programs in the guest have written is on its disks.
func (c *Client) Sync(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/sync", nil, nil)
}

// Stats asks for the guest's own view of itself.
func (c *Client) Stats(ctx context.Context) (st proto.Stats, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/stats", nil, &st)
	return st, err
}

// HoldMemory has the agent keep memory from the rest of the guest.
func (c *Client) HoldMemory(ctx context.Context, r proto.MemoryRequest) (a proto.MemoryAnswer, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/memory", r, &a)
	return a, err
}

// Shutdown asks for a polite power-off and does not wait for it.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/shutdown", nil, nil)
}

func askStatus() (call, error) { return call{method: http.MethodGet, path: "/v1/status"}, nil }

// untilReady sends what ask makes until it is answered, then asks for the
// status until that says ready.
func (c *Client) untilReady(ctx context.Context, poll time.Duration, dial schedule, ask func() (call, error)) (proto.Status, error) {
	done, err := c.enter()
	if err != nil {
		return proto.Status{}, err
	}
	defer done()
	if poll <= 0 {
		poll = defaultPoll
	}
	answered := false
	for {
		q, err := ask()
		if err != nil {
			return proto.Status{}, fmt.Errorf("write request to guest agent: %w", err)
		}
		var st proto.Status
		k, resp, err := c.open(ctx, q, c.dialOn(dial))
		if err == nil {
			err = c.answer(ctx, k, resp, &st)
		}
		switch {
		case err == nil && st.Ready:
			return st, nil
		case err == nil && st.Error != "":
			return st, &RemoteError{proto.CodeInternal, st.Error}
		case err == nil:
			answered, ask = true, askStatus
		case errors.Is(err, ErrNotReady):
			answered = true
		case !errors.Is(err, ErrUnreachable):
			return st, err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			if err == nil || answered {
				err = fmt.Errorf("%w: %w", ErrNotReady, context.Cause(ctx))
			}
			return st, err
		}
	}
}
