package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
)

// Headers that say where a part of the output of a process begins, and where it
// goes on.
const (
	beginHeader  = "Sietch-Offset"
	offsetHeader = "Sietch-Next-Offset"
)

// outputPage is the most that one answer without follow holds.
const outputPage = 1 << 20

// StartProcess is POST /v1/sandboxes/{name}/processes.
func (s *Server) StartProcess(w http.ResponseWriter, r *http.Request, name SandboxName, _ StartProcessParams) {
	q, err := decode[ProcessRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p, err := s.as(r).StartProcess(r.Context(), runtime.ExecRequest{
		Name: name, Args: q.Args, Env: q.Env, WorkingDir: q.Workdir, User: q.User, Timeout: milliseconds(q.TimeoutMs),
	})
	s.answer(w, r, http.StatusCreated, p, err)
}

// ListProcesses is GET /v1/sandboxes/{name}/processes.
func (s *Server) ListProcesses(w http.ResponseWriter, r *http.Request, name SandboxName) {
	list, err := s.as(r).ListProcesses(r.Context(), name)
	s.answer(w, r, http.StatusOK, list, err)
}

// InspectProcess is GET /v1/sandboxes/{name}/processes/{id}.
func (s *Server) InspectProcess(w http.ResponseWriter, r *http.Request, name SandboxName, id ProcessID) {
	p, err := s.as(r).InspectProcess(r.Context(), name, id)
	s.answer(w, r, http.StatusOK, p, err)
}

// WaitProcess is GET /v1/sandboxes/{name}/processes/{id}/wait.
func (s *Server) WaitProcess(w http.ResponseWriter, r *http.Request, name SandboxName, id ProcessID, q WaitProcessParams) {
	ctx, cancel := s.draining(r.Context())
	defer cancel()
	if q.TimeoutMs > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, milliseconds(q.TimeoutMs))
		defer stop()
	}
	engine := s.as(r)
	p, err := engine.WaitProcess(ctx, name, id)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && r.Context().Err() == nil {
		p, err = engine.InspectProcess(r.Context(), name, id)
	}
	s.answer(w, r, http.StatusOK, p, err)
}

// ProcessOutput is GET /v1/sandboxes/{name}/processes/{id}/output.
func (s *Server) ProcessOutput(w http.ResponseWriter, r *http.Request, name SandboxName, id ProcessID, q ProcessOutputParams) {
	engine := s.as(r)
	if !q.Follow {
		limit := q.Limit
		if limit == 0 || limit > outputPage {
			limit = outputPage
		}
		var buf bytes.Buffer
		next, err := engine.ProcessOutput(r.Context(), runtime.ProcessOutputRequest{Name: name, ID: id, Offset: q.Offset, Limit: limit}, &buf)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", octets)
		w.Header().Set(beginHeader, strconv.FormatInt(next-int64(buf.Len()), 10))
		w.Header().Set(offsetHeader, strconv.FormatInt(next, 10))
		w.Write(buf.Bytes())
		return
	}
	ctx, cancel := s.draining(r.Context())
	defer cancel()
	s.metrics.streams.WithLabelValues("output").Inc()
	defer s.metrics.streams.WithLabelValues("output").Dec()
	w.Header().Set("Trailer", offsetHeader)
	out := &late{w: w, contentType: octets}
	begins := q.Offset
	w.Header().Set(beginHeader, strconv.FormatInt(begins, 10))
	next, err := engine.ProcessOutput(ctx, runtime.ProcessOutputRequest{
		Name: name, ID: id, Offset: q.Offset, Limit: q.Limit, Follow: true,
		Skipped: func(n int64) {
			if out.to == nil {
				begins += n
				w.Header().Set(beginHeader, strconv.FormatInt(begins, 10))
			}
		},
	}, out)
	err = ended(ctx, err)
	if err != nil && out.to == nil {
		w.Header().Del("Trailer")
		w.Header().Del(beginHeader)
	}
	s.close(w, r, out, err)
	w.Header().Set(offsetHeader, strconv.FormatInt(next, 10))
}

// SignalProcess is POST /v1/sandboxes/{name}/processes/{id}/signal.
func (s *Server) SignalProcess(w http.ResponseWriter, r *http.Request, name SandboxName, id ProcessID, _ SignalProcessParams) {
	q, err := decode[SignalRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	sig, err := signalNamed(q.Signal)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.done(w, r, s.as(r).SignalProcess(r.Context(), name, id, sig))
}

// RemoveProcess is DELETE /v1/sandboxes/{name}/processes/{id}.
func (s *Server) RemoveProcess(w http.ResponseWriter, r *http.Request, name SandboxName, id ProcessID, _ RemoveProcessParams) {
	s.done(w, r, s.as(r).RemoveProcess(r.Context(), name, id))
}

// signalNamed reads TERM, SIGTERM or 15.
func signalNamed(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, usage(fmt.Sprintf("signal %.40q is not known", text), "give a name such as TERM or KILL, or a number")
}

// signalOf is signalNamed of a JSON string or number.
func signalOf(raw json.RawMessage) (syscall.Signal, error) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return signalNamed(text)
}
