package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// readiness remembers for a moment whether the server can serve: looking at the
// host is no small thing, and probes come often.
type readiness struct {
	mu   sync.Mutex
	at   time.Time
	last Health
}

const readinessAge = 5 * time.Second

// health looks, or says what was seen a moment ago.
func (s *Server) health(ctx context.Context) Health {
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	if !s.ready.at.IsZero() && time.Since(s.ready.at) < readinessAge {
		return s.ready.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	h := Health{Status: "ok", Checks: []HealthCheck{}}
	add := func(name, detail string, err error) {
		if err != nil {
			h.Status, detail = "failing", err.Error()
		}
		h.Checks = append(h.Checks, HealthCheck{Name: name, Ok: err == nil, Detail: detail})
	}
	boxes, err := s.o.Engine.List(ctx, true)
	add("data directory", fmt.Sprintf("%d sandboxes", len(boxes)), err)
	report, err := s.o.Engine.Doctor(ctx)
	var missing []string
	for _, c := range report.Checks {
		if c.Status == "missing" {
			missing = append(missing, c.Name+": "+c.Detail)
		}
	}
	if err == nil && !report.OK {
		err = fmt.Errorf("%s", strings.Join(missing, "; "))
	}
	add("host", "", err)
	s.ready.at, s.ready.last = time.Now(), h
	return h
}

// Healthz is GET /healthz.
func (s *Server) Healthz(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, Health{Status: "ok", Checks: []HealthCheck{}})
}

// Readyz is GET /readyz. What fails is told to those who may know it.
func (s *Server) Readyz(w http.ResponseWriter, r *http.Request) {
	h := s.health(r.Context())
	status := http.StatusOK
	if h.Status != "ok" {
		status = http.StatusServiceUnavailable
	}
	if s.o.Tokens != nil && !callOf(r).local && s.known(r) != nil {
		h.Checks = []HealthCheck{}
	}
	writeJSON(w, status, h)
}

// known says whether the caller of an open path has shown a token.
func (s *Server) known(r *http.Request) error {
	_, err := s.o.Tokens.Find(presented(r))
	return err
}

// Version is GET /v1/version.
func (s *Server) Version(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, Version{Version: s.o.Version, Api: s.document.spec.Info.Version})
}

// Openapi is GET /v1/openapi.yaml.
func (s *Server) Openapi(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Write(Document)
}

// Doctor is GET /v1/doctor.
func (s *Server) Doctor(w http.ResponseWriter, r *http.Request) {
	report, err := s.as(r).Doctor(r.Context())
	s.answer(w, r, http.StatusOK, report, err)
}
