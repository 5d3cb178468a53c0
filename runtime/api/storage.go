package api

import (
	"net/http"
	"strconv"

	"github.com/sietch-dev/sietch/runtime"
)

// Gc is POST /v1/gc.
func (s *Server) Gc(w http.ResponseWriter, r *http.Request, p GcParams) {
	report, err := s.as(r).GC(r.Context(), p.DryRun)
	s.answer(w, r, http.StatusOK, report, err)
}

// Fsck is GET /v1/fsck.
func (s *Server) Fsck(w http.ResponseWriter, r *http.Request) {
	report, err := s.as(r).Fsck(r.Context())
	s.answer(w, r, http.StatusOK, report, err)
}

// Du is GET /v1/du.
func (s *Server) Du(w http.ResponseWriter, r *http.Request) {
	report, err := s.as(r).DiskUsage(r.Context())
	s.answer(w, r, http.StatusOK, report, err)
}

// Events is GET /v1/events.
func (s *Server) Events(w http.ResponseWriter, r *http.Request, p EventsParams) {
	q := runtime.EventsRequest{After: -1, Follow: p.Follow == nil || *p.Follow}
	if p.After != nil {
		q.After = *p.After
	}
	if p.LastEventID != "" {
		last, err := strconv.ParseInt(p.LastEventID, 10, 64)
		if err != nil || last < 0 {
			s.fail(w, r, usage("Last-Event-ID is not the id of an event", ""))
			return
		}
		q.After = last
	}
	engine := s.as(r)
	if err := s.unlimited(r); err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, cancel := s.draining(r.Context())
	defer cancel()
	s.metrics.streams.WithLabelValues("events").Inc()
	defer s.metrics.streams.WithLabelValues("events").Dec()
	out := newServerEvents(w)
	defer out.keepAlive()()
	err := engine.Events(ctx, q, func(e runtime.Event) error {
		return out.send(strconv.FormatInt(e.ID, 10), e.Type, e)
	})
	s.endEvents(ctx, r, out, err)
}
