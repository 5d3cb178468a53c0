package agent

import (
	"context"
	"net"
	"time"
)

// spacing is the time to the next attempt: a restored guest answers the first,
// a booting one takes seconds, and one on a host that does much else may take a
// minute and need a second for a handshake. A hundredth of the time that has
// passed is soon enough for each.
func spacing(passed time.Duration) time.Duration {
	return min(max(passed/100, 5*time.Millisecond), 250*time.Millisecond)
}

// patience is how long an attempt made at that time may take.
func patience(passed time.Duration) time.Duration {
	return max(16*spacing(passed), 250*time.Millisecond)
}

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

	begin := time.Now()
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	for {
		select {
		case <-next.C:
			pending++
			passed := time.Since(begin)
			go func() {
				one, cancel := context.WithTimeout(attempts, patience(passed))
				defer cancel()
				nc, err := c.o.Dial(one)
				results <- result{nc, err}
			}()
			next.Reset(spacing(passed))
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
