package api

import (
	"bytes"
	"sync"

	"golang.org/x/time/rate"
)

// outputBudget bounds what all blocking execs together keep of outputs.
const outputBudget = 512 << 20

// budget is an amount of memory that requests share.
type budget struct {
	mu   sync.Mutex
	free int64
}

// take returns how much of n there is.
func (b *budget) take(n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.free)
	b.free -= n
	return n
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	b.free += n
	b.mu.Unlock()
}

// kept is a writer that keeps what there is room for and takes the rest too: a
// command must not be held up by an answer that is full.
type kept struct {
	budget    *budget
	limit     int64
	mu        sync.Mutex
	buf       bytes.Buffer
	taken     int64
	truncated bool
}

func (s *Server) keep(limit int64) *kept { return &kept{budget: s.budget, limit: limit} }

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := min(int64(len(p)), k.limit-k.taken)
	if k.truncated {
		want = 0
	}
	got := k.budget.take(want)
	k.taken += got
	k.buf.Write(p[:got])
	if got < int64(len(p)) {
		k.truncated = true
	}
	return len(p), nil
}

// release gives the room back; the bytes are not to be used after.
func (k *kept) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budget.give(k.taken)
	k.taken, k.limit, k.buf = 0, 0, bytes.Buffer{}
}

// limiters bound the requests of each token.
type limiters struct {
	rate  rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

func newLimiters(perSecond float64, burst int) *limiters {
	if burst == 0 {
		burst = max(1, int(2*perSecond))
	}
	return &limiters{rate: rate.Limit(perSecond), burst: burst, of: map[string]*rate.Limiter{}}
}

// allow counts a call against its token. There are no more limiters than tokens
// ever seen; revoked ones are few.
func (l *limiters) allow(c *call) error {
	if l.rate == 0 || c.local {
		return nil
	}
	who := ""
	if c.who != nil {
		who = c.who.ID
	}
	l.mu.Lock()
	limiter := l.of[who]
	if limiter == nil {
		limiter = rate.NewLimiter(l.rate, l.burst)
		l.of[who] = limiter
	}
	l.mu.Unlock()
	if !limiter.Allow() {
		return refusal(errRateLimited, "too many requests", "wait a second and try again")
	}
	return nil
}
