package agent

import (
	"context"
	"net"
	"time"
)

// schedule says how a guest is dialed that may not be there yet. The kernel
// repeats a SYN that got lost after a second only, so new attempts are made
// beside the old ones.
type schedule struct {
	// spacing is the time to the next attempt, after waiting for so long.
	spacing func(passed time.Duration) time.Duration
	// patience is how long attempt n may take, 0 for as long as it likes. A
	// guest on a host that does much else may need seconds for a handshake:
	// giving up every attempt before would never let one succeed.
	patience func(n int, passed time.Duration) time.Duration
}

var (
	// restored: the guest has its network and answers the first SYN, when it
	// gets to run. More of them would only be more work for it.
	restored = schedule{
		spacing:  func(passed time.Duration) time.Duration { return max(passed/2, 100*time.Millisecond) },
		patience: func(int, time.Duration) time.Duration { return 0 },
	}
	// booting: nothing answers for a while, and then what was sent before is
	// lost. To try again after a hundredth of the time that has passed finds
	// the moment closely enough. Attempts 1, 2, 4, 8, … are the patient ones.
	booting = schedule{
		spacing: bootSpacing,
		patience: func(n int, passed time.Duration) time.Duration {
			if n&(n-1) == 0 {
				return 0
			}
			return max(16*bootSpacing(passed), 250*time.Millisecond)
		},
	}
)

func bootSpacing(passed time.Duration) time.Duration {
	return min(max(passed/100, 5*time.Millisecond), 250*time.Millisecond)
}

// dialOn opens a connection to a guest that may not be there yet: attempt after
// attempt, several at a time, until one succeeds or ctx ends. All others are
// closed when it returns.
func (c *Client) dialOn(s schedule) dialer {
	return func(ctx context.Context) (net.Conn, error) { return c.dialUntil(ctx, s) }
}

func (c *Client) dialUntil(ctx context.Context, s schedule) (net.Conn, error) {
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
	for n := 1; ; {
		select {
		case <-next.C:
			passed := time.Since(begin)
			patience := s.patience(n, passed)
			n++
			pending++
			go func() {
				ctx := attempts
				if patience > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, patience)
					defer cancel()
				}
				nc, err := c.o.Dial(ctx)
				results <- result{nc, err}
			}()
			next.Reset(s.spacing(passed))
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
