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

	"github.com/sietch-dev/sietch/runtime"
)

// Bounds of what is kept for Idempotency-Key.
const (
	replayAge     = 24 * time.Hour
	replayEntries = 10_000
	replayBytes   = 64 << 20 // of all answers
	replayAnswer  = 1 << 20  // of one
)

// replays remembers the answers to calls that carry a key. Only success is
// remembered: what failed has done nothing and may be tried again. A call whose
// server died under it is neither; that it began is remembered.
type replays struct {
	log   *replayLog // nil: what is known goes with the server
	warn  func(error)
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
	// An earlier server began the call and did not end it.
	interrupted bool
	at          time.Time
	place       *list.Element
}

func (e *replay) bytes() int {
	if e.answer == nil {
		return 0
	}
	return len(e.answer.body)
}

type answered struct {
	status int
	header http.Header
	body   []byte
}

// newReplays knows what the last server knew, when there is a directory to keep
// it in. What cannot be noted at the end of a call is a warning: the next server
// then says that the call was interrupted.
func newReplays(dir string, warn func(error)) (*replays, error) {
	p := &replays{calls: map[[32]byte]*replay{}, now: time.Now, warn: warn}
	if dir == "" {
		return p, nil
	}
	log, old, err := openReplayLog(dir)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = log
	for _, e := range old {
		p.keep(e)
	}
	p.expire()
	return p, p.log.rewrite(p.notes())
}

// keep puts an ended call behind the others. The caller holds mu.
func (p *replays) keep(e *replay) {
	p.calls[e.key] = e
	e.place = p.order.PushBack(e)
	p.bytes += e.bytes()
}

// notes are what the next server has to know. The caller holds mu.
func (p *replays) notes() []note {
	var all []note
	for at := p.order.Front(); at != nil; at = at.Next() {
		e := at.Value.(*replay)
		all = append(all, noteOf(e, e.at))
	}
	for _, e := range p.calls {
		if e.place == nil { // it runs
			all = append(all, noteOf(e, p.now()))
		}
	}
	return all
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
		mine, theirs, err := s.once.enter(id, request)
		switch {
		case err != nil:
			s.fail(w, r, &runtime.Error{Kind: runtime.ErrHost, Message: "the Idempotency-Key cannot be kept", Err: err, Hint: "the call can be made without one"})
			return
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
		if theirs.interrupted {
			s.fail(w, r, refusal(errInterrupted, "the server ended while it ran the call with this Idempotency-Key: it was done in whole, in part or not at all",
				"look at what is there, and make a new key to call again"))
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
func (p *replays) enter(key, request [32]byte) (mine, theirs *replay, err error) {
	p.mu.Lock()
	p.expire()
	if e := p.calls[key]; e != nil {
		p.mu.Unlock()
		return nil, e, nil
	}
	e := &replay{key: key, request: request, done: make(chan struct{})}
	p.calls[key] = e
	p.mu.Unlock()
	if p.log == nil {
		return e, nil, nil
	}
	// Others with this key wait at e meanwhile.
	if err := p.log.write(noteOf(e, p.now()), true); err != nil {
		p.drop(e)
		return nil, nil, err
	}
	return e, nil, nil
}

func (p *replays) drop(e *replay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, e.key)
	close(e.done)
}

func (p *replays) leave(e *replay) {
	at := p.now()
	if p.log != nil {
		n := noteOf(e, at)
		n.Free = e.answer == nil
		if err := p.log.write(n, false); err != nil {
			p.warn(err)
		}
	}
	if e.answer == nil {
		p.drop(e)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(e.done)
	e.at = at
	p.keep(e)
	p.expire()
	if p.log != nil && p.log.full() {
		if err := p.log.rewrite(p.notes()); err != nil {
			p.warn(err)
		}
	}
}

func (p *replays) expire() {
	for at := p.order.Front(); at != nil; at = p.order.Front() {
		e := at.Value.(*replay)
		if p.now().Sub(e.at) < replayAge && p.order.Len() <= replayEntries && p.bytes <= replayBytes {
			return
		}
		p.order.Remove(at)
		p.bytes -= e.bytes()
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
