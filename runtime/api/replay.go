package api

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Bounds of what is kept for Idempotency-Key.
const (
	replayAge     = 24 * time.Hour
	replayEntries = 10_000
	replayBytes   = 64 << 20 // of all answers
	replayAnswer  = 1 << 20  // of one
)

// replays remembers the answers to calls that carry a key. Only success is
// remembered: what failed has done nothing and may be tried again.
type replays struct {
	mu    sync.Mutex
	calls map[[32]byte]*replay
	order list.List // of *replay, oldest first; those that have an answer
	bytes int
	now   func() time.Time
}

type replay struct {
	key     [32]byte
	request [32]byte
	done    chan struct{} // closed when the call has ended
	// The answer; nil when there is none to be given again.
	answer *answered
	at     time.Time
	place  *list.Element
}

type answered struct {
	status int
	header http.Header
	body   []byte
}

func newReplays() *replays {
	return &replays{calls: map[[32]byte]*replay{}, now: time.Now}
}

// onceOnly runs a call that carries a key, unless it ran before.
func (s *Server) onceOnly(w http.ResponseWriter, r *http.Request, key string, op operation, next http.Handler) {
	request, err := fingerprint(r, op)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	who := ""
	if c := callOf(r); c.who != nil {
		who = c.who.ID
	}
	id := sha256.Sum256([]byte(who + "\x00" + key))
	for {
		mine, theirs := s.once.enter(id, request)
		switch {
		case mine != nil:
			defer s.once.leave(mine) // also when the handler panics
			rec := &taping{ResponseWriter: w}
			next.ServeHTTP(rec, r)
			mine.answer = rec.answered()
			return
		case theirs.request != request:
			s.fail(w, r, refusal(errKeyReused, "the Idempotency-Key was used for another request", "make a new key for every call that is not a repetition"))
			return
		}
		select {
		case <-theirs.done:
		case <-r.Context().Done():
			s.fail(w, r, context.Cause(r.Context()))
			return
		}
		if theirs.answer != nil {
			s.metrics.replayed.Inc()
			maps.Copy(w.Header(), theirs.answer.header)
			w.Header().Set("Idempotency-Replayed", "true")
			w.WriteHeader(theirs.answer.status)
			w.Write(theirs.answer.body)
			return
		}
	}
}

// fingerprint tells requests apart. Of uploads, which pass through, it knows the
// length.
func fingerprint(r *http.Request, op operation) ([32]byte, error) {
	h := sha256.New()
	io.WriteString(h, r.Method+"\x00"+r.URL.EscapedPath()+"\x00"+r.URL.RawQuery+"\x00")
	if !op.json {
		io.WriteString(h, strconv.FormatInt(r.ContentLength, 10))
	} else if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return [32]byte{}, err
		}
		r.Body = io.NopCloser(bytes.NewReader(data))
		h.Write(data)
	}
	return [32]byte(h.Sum(nil)), nil
}

// enter returns a new entry, which the caller has to leave, or the one there is.
func (p *replays) enter(key, request [32]byte) (mine, theirs *replay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	if e := p.calls[key]; e != nil {
		return nil, e
	}
	e := &replay{key: key, request: request, done: make(chan struct{})}
	p.calls[key] = e
	return e, nil
}

func (p *replays) leave(e *replay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(e.done)
	if e.answer == nil {
		delete(p.calls, e.key)
		return
	}
	e.at = p.now()
	e.place = p.order.PushBack(e)
	p.bytes += len(e.answer.body)
	p.expire()
}

func (p *replays) expire() {
	for at := p.order.Front(); at != nil; at = p.order.Front() {
		e := at.Value.(*replay)
		if p.now().Sub(e.at) < replayAge && p.order.Len() <= replayEntries && p.bytes <= replayBytes {
			return
		}
		p.order.Remove(at)
		p.bytes -= len(e.answer.body)
		delete(p.calls, e.key)
	}
}

// taping passes an answer on and keeps a copy.
type taping struct {
	http.ResponseWriter
	status int
	header http.Header
	body   bytes.Buffer
	long   bool
}

func (t *taping) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *taping) WriteHeader(status int) {
	if t.status == 0 && status >= 200 {
		t.status, t.header = status, t.Header().Clone()
		t.header.Del("X-Request-Id")
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t *taping) Write(p []byte) (int, error) {
	if t.status == 0 {
		t.WriteHeader(http.StatusOK)
	}
	if t.long = t.long || t.body.Len()+len(p) > replayAnswer; !t.long {
		t.body.Write(p)
	}
	return t.ResponseWriter.Write(p)
}

func (t *taping) answered() *answered {
	if t.status < 200 || t.status > 299 || t.long {
		return nil
	}
	return &answered{t.status, t.header, t.body.Bytes()}
}
