package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/sietch-dev/sietch/runtime"
)

// calls are those under way, for who wants to end one and still have its answer:
// to break the connection ends it too, but tells nothing.
type calls struct {
	mu sync.Mutex
	m  map[callName]context.CancelCauseFunc
}

// callName is a call by who made it and what they named it.
type callName struct{ who, id string }

func nameOf(c *call, id string) callName {
	n := callName{id: id}
	switch {
	case c.who != nil:
		n.who = c.who.ID
	case c.local:
		n.who = "local"
	}
	return n
}

// enter notes a call that its maker has named. Of two with one name the second
// cannot be ended by it.
func (cs *calls) enter(r *http.Request, c *call) (_ *http.Request, leave func()) {
	name := nameOf(c, r.Header.Get("X-Request-Id"))
	if name.id == "" || name.id != c.id {
		return r, func() {}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if _, taken := cs.m[name]; taken {
		return r, func() {}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	if cs.m == nil {
		cs.m = map[callName]context.CancelCauseFunc{}
	}
	cs.m[name] = cancel
	return r.WithContext(ctx), func() {
		cs.mu.Lock()
		delete(cs.m, name)
		cs.mu.Unlock()
		cancel(nil)
	}
}

// CancelCall is DELETE /v1/calls/{id}.
func (s *Server) CancelCall(w http.ResponseWriter, r *http.Request, id string) {
	s.calls.mu.Lock()
	cancel := s.calls.m[nameOf(callOf(r), id)]
	s.calls.mu.Unlock()
	if cancel == nil {
		s.fail(w, r, refusal(runtime.ErrNotFound, fmt.Sprintf("no call %.128q is under way", id), ""))
		return
	}
	cancel(context.Canceled)
	w.WriteHeader(http.StatusNoContent)
}
