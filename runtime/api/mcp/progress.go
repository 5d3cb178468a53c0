package mcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// progressEvery is how often a client hears of a call that goes on.
var progressEvery = 2 * time.Second

// progress tells a client how far a call is. Each notification has a larger
// number than the one before, as the protocol wants: between two steps it is the
// fraction of a step that approaches one.
type progress struct {
	ctx     context.Context
	session *sdk.ServerSession
	token   any
	what    string
	began   time.Time

	mu     sync.Mutex
	total  float64 // 0: not known
	done   float64 // whole steps
	since  time.Time
	last   float64
	end    chan struct{}
	ended  chan struct{}
	ending sync.Once
}

// begin tells that a call has begun, and goes on telling until stop is called.
// Clients that did not ask for it hear nothing.
func begin(ctx context.Context, r *sdk.CallToolRequest, what string, total int) *progress {
	now := time.Now()
	p := &progress{
		ctx: ctx, session: r.Session, token: r.Params.GetProgressToken(), what: what, began: now, since: now,
		total: float64(total), last: -1, end: make(chan struct{}), ended: make(chan struct{}),
	}
	if p.token == nil {
		close(p.ended)
		return p
	}
	p.tell(what)
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-p.end:
				return
			case <-ctx.Done():
				return
			case now := <-tick.C:
				p.tell(fmt.Sprintf("%s: %d s", what, int(now.Sub(p.began).Seconds())))
			}
		}
	}()
	return p
}

// step tells that one more of the total is done.
func (p *progress) step(message string) {
	p.mu.Lock()
	p.done++
	p.since = time.Now()
	p.mu.Unlock()
	p.tell(message)
}

func (p *progress) tell(message string) {
	if p.token == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.done
	if t := time.Since(p.since).Seconds(); p.total > 0 {
		at += 0.9 * t / (t + 10)
	} else {
		at = time.Since(p.began).Seconds()
	}
	if at <= p.last {
		return
	}
	p.last = at
	// A client that is gone is noticed where its result is written.
	_ = p.session.NotifyProgress(p.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: p.token, Message: message, Progress: at, Total: p.total,
	})
}

// stop ends the telling; nothing is told after it returns. Idempotent.
func (p *progress) stop() {
	p.ending.Do(func() { close(p.end) })
	<-p.ended
}
