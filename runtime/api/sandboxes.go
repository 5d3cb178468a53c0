package api

import (
	"math"
	"net/http"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// ListSandboxes is GET /v1/sandboxes.
func (s *Server) ListSandboxes(w http.ResponseWriter, r *http.Request, p ListSandboxesParams) {
	list, err := s.as(r).List(r.Context(), p.All)
	s.answer(w, r, http.StatusOK, list, err)
}

// RunSandbox is POST /v1/sandboxes.
func (s *Server) RunSandbox(w http.ResponseWriter, r *http.Request, _ RunSandboxParams) {
	q, err := decode[RunRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	network := string(q.Network)
	if network == "" {
		network = runtime.NetworkNAT
	}
	run := runtime.RunRequest{
		Name: q.Name, From: q.From, CPUs: q.Cpus, MemoryBytes: q.MemoryBytes, DiskBytes: q.DiskBytes,
		Env: q.Env, WorkingDir: q.Workdir, User: q.User, Network: network, Labels: q.Labels,
		Message: q.Message, Args: q.Args, FromDisk: q.FromDisk, Nested: q.Nested,
		TTL: milliseconds(q.TtlMs),
	}
	for _, port := range q.Ports {
		run.Ports = append(run.Ports, port.engine())
	}
	box, err := s.as(r).Run(r.Context(), run)
	s.answer(w, r, http.StatusCreated, box, err)
}

// milliseconds of a request; what a duration cannot hold is the longest there is.
func milliseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

// InspectSandbox is GET /v1/sandboxes/{name}.
func (s *Server) InspectSandbox(w http.ResponseWriter, r *http.Request, name SandboxName) {
	box, err := s.as(r).Inspect(r.Context(), name)
	s.answer(w, r, http.StatusOK, box, err)
}

// RemoveSandbox is DELETE /v1/sandboxes/{name}.
func (s *Server) RemoveSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, p RemoveSandboxParams) {
	s.done(w, r, s.as(r).Remove(r.Context(), name, p.Force))
}

// PauseSandbox is POST /v1/sandboxes/{name}/pause.
func (s *Server) PauseSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, _ PauseSandboxParams) {
	s.done(w, r, s.as(r).Pause(r.Context(), name))
}

// ResumeSandbox is POST /v1/sandboxes/{name}/resume.
func (s *Server) ResumeSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, _ ResumeSandboxParams) {
	s.done(w, r, s.as(r).Resume(r.Context(), name))
}

// ResizeSandbox is POST /v1/sandboxes/{name}/resize.
func (s *Server) ResizeSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, _ ResizeSandboxParams) {
	q, err := decode[ResizeRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	box, err := s.as(r).Resize(r.Context(), runtime.ResizeRequest{Name: name, CPUs: q.Cpus, MemoryBytes: q.MemoryBytes})
	s.answer(w, r, http.StatusOK, box, err)
}

// ReclaimSandbox is POST /v1/sandboxes/{name}/reclaim.
func (s *Server) ReclaimSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, _ ReclaimSandboxParams) {
	report, err := s.as(r).Reclaim(r.Context(), name)
	s.answer(w, r, http.StatusOK, report, err)
}

// SandboxStats is GET /v1/sandboxes/{name}/stats.
func (s *Server) SandboxStats(w http.ResponseWriter, r *http.Request, name SandboxName) {
	list, err := s.as(r).Stats(r.Context(), []string{name})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.answer(w, r, http.StatusOK, list[0], nil)
}

// Stats is GET /v1/stats.
func (s *Server) Stats(w http.ResponseWriter, r *http.Request, p StatsParams) {
	list, err := s.as(r).Stats(r.Context(), p.Name)
	s.answer(w, r, http.StatusOK, list, err)
}

// StopSandbox is POST /v1/sandboxes/{name}/stop.
func (s *Server) StopSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, p StopSandboxParams) {
	s.done(w, r, s.as(r).Stop(r.Context(), runtime.StopRequest{Name: name, Timeout: milliseconds(p.TimeoutMs)}))
}

// StartSandbox is POST /v1/sandboxes/{name}/start.
func (s *Server) StartSandbox(w http.ResponseWriter, r *http.Request, name SandboxName, _ StartSandboxParams) {
	box, err := s.as(r).Start(r.Context(), name)
	s.answer(w, r, http.StatusOK, box, err)
}

// SandboxLogs is GET /v1/sandboxes/{name}/logs.
func (s *Server) SandboxLogs(w http.ResponseWriter, r *http.Request, name SandboxName, p SandboxLogsParams) {
	ctx, cancel := s.draining(r.Context())
	defer cancel()
	out := &late{w: w, contentType: octets}
	err := s.as(r).Logs(ctx, runtime.LogsRequest{Name: name, Follow: p.Follow, Source: string(p.Source), Tail: p.Tail}, out)
	s.close(w, r, out, ended(ctx, err))
}

// ListPorts is GET /v1/sandboxes/{name}/ports.
func (s *Server) ListPorts(w http.ResponseWriter, r *http.Request, name SandboxName) {
	box, err := s.as(r).Inspect(r.Context(), name)
	s.answer(w, r, http.StatusOK, box.Ports, err)
}

// AddPort is POST /v1/sandboxes/{name}/ports.
func (s *Server) AddPort(w http.ResponseWriter, r *http.Request, name SandboxName, _ AddPortParams) {
	q, err := decode[PortRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	port, err := s.as(r).AddPort(r.Context(), name, q.engine())
	s.answer(w, r, http.StatusCreated, port, err)
}

// RemovePort is DELETE /v1/sandboxes/{name}/ports/{host}.
func (s *Server) RemovePort(w http.ResponseWriter, r *http.Request, name SandboxName, host int, p RemovePortParams) {
	protocol := string(p.Protocol)
	if protocol == "" {
		protocol = "tcp"
	}
	s.done(w, r, s.as(r).RemovePort(r.Context(), name, runtime.Port{HostIP: p.HostIp, Host: uint16(host), Protocol: protocol}))
}

func (p PortRequest) engine() runtime.Port {
	port := runtime.Port{HostIP: p.HostIp, Host: uint16(p.Host), Guest: uint16(p.Guest), Protocol: string(p.Protocol)}
	if port.Protocol == "" {
		port.Protocol = "tcp"
	}
	return port
}
