package agent

import (
	"context"
	"net"
	"time"
)

const (
	// A fresh attempt is made this often at first and less often later; each is
	// given up after attemptLimit. A guest under a loaded host may need some
	// tens of milliseconds to answer one.
	attemptEvery    = 4 * time.Millisecond
	attemptEveryMax = 20 * time.Millisecond
	attemptLimit    = 200 * time.Millisecond
)

// dialUntil opens a connection to a guest that may not be there yet. It opens
// attempt after attempt, several at a time, until one succeeds or ctx ends; all
// others are closed when it returns.
func (c *Client) dialUntil(ctx context.Context) (net.Conn, error) {
	type result struct {
		nc  net.Conn
		err error
	}
	attempts, cancel := context.WithCancel(ctx)
	results := make(chan result)
	pending := 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			if r := <-results; r.nc != nil {
				r.nc.Close()
			}
		}
	}()

	every := attemptEvery
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	for {
		select {
		case <-next.C:
			if time.Duration(pending)*attemptEveryMax < attemptLimit {
				pending++
				go func() {
					one, cancel := context.WithTimeout(attempts, attemptLimit)
					defer cancel()
					nc, err := c.o.Dial(one)
					results <- result{nc, err}
				}()
			}
			next.Reset(every)
			every = min(every+every/8, attemptEveryMax)
		case r := <-results:
			pending--
			if r.err == nil {
				return r.nc, nil
			}
			last = r.err
		case <-ctx.Done():
			if last == nil {
				last = ctx.Err()
			}
			return nil, last
		}
	}
}
