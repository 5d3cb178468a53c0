package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
)

// ArrakisHealth is GET /v1/health.
func (s *Server) ArrakisHealth(w http.ResponseWriter, r *http.Request) {
	if h := s.health(r.Context()); h.Status != "ok" {
		var wrong []string
		for _, c := range h.Checks {
			if !c.Ok {
				wrong = append(wrong, c.Name+": "+c.Detail)
			}
		}
		s.fail(w, r, refusal(runtime.ErrHost, strings.Join(wrong, "; "), "sietch doctor says what is missing"))
		return
	}
	writeJSON(w, http.StatusOK, ArrakisHealth{Status: "healthy", Timestamp: time.Now().UTC()})
}

// ArrakisListVMs is GET /v1/vms.
func (s *Server) ArrakisListVMs(w http.ResponseWriter, r *http.Request) {
	boxes, err := s.as(r).List(r.Context(), true)
	s.answer(w, r, http.StatusOK, arrakis.ListOf(boxes), err)
}

// ArrakisGetVM is GET /v1/vms/{name}.
func (s *Server) ArrakisGetVM(w http.ResponseWriter, r *http.Request, name SandboxName) {
	b, err := s.as(r).Inspect(r.Context(), name)
	s.answer(w, r, http.StatusOK, arrakis.Of(b), err)
}

// ArrakisStartVM is POST /v1/vms.
func (s *Server) ArrakisStartVM(w http.ResponseWriter, r *http.Request, _ ArrakisStartVMParams) {
	q, err := decode[ArrakisStartRequest](r, true)
	if err == nil {
		var b runtime.Sandbox
		if b, err = s.startVM(r.Context(), s.as(r), q); err == nil {
			writeJSON(w, http.StatusOK, arrakis.Of(b))
			return
		}
	}
	s.fail(w, r, err)
}

func (s *Server) startVM(ctx context.Context, engine runtime.Engine, q ArrakisStartRequest) (runtime.Sandbox, error) {
	for _, part := range [][2]string{{"kernel", q.Kernel}, {"initramfs", q.Initramfs}} {
		if part[1] != "" && part[1] != "default" {
			return runtime.Sandbox{}, usage(fmt.Sprintf("%s %.100q: there is one %s, and it is not chosen", part[0], part[1], part[0]), "leave it out")
		}
	}
	return arrakis.Start(ctx, engine, arrakis.StartRequest{
		Name: q.VmName, Image: q.Rootfs, Default: s.o.DefaultImage, EntryPoint: q.EntryPoint, SnapshotID: q.SnapshotId,
	})
}

// ArrakisUpdateVM is PATCH /v1/vms/{name}.
func (s *Server) ArrakisUpdateVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisUpdateVMParams) {
	q, err := decode[ArrakisUpdateRequest](r, true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	err = arrakis.SetStatus(r.Context(), s.as(r), name, string(q.Status))
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, err)
}

// ArrakisDestroyVM is DELETE /v1/vms/{name}.
func (s *Server) ArrakisDestroyVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisDestroyVMParams) {
	err := s.as(r).Remove(r.Context(), name, true)
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, err)
}

// ArrakisDestroyAllVMs is DELETE /v1/vms: all that the caller can see.
func (s *Server) ArrakisDestroyAllVMs(w http.ResponseWriter, r *http.Request, _ ArrakisDestroyAllVMsParams) {
	_, err := arrakis.DestroyAll(r.Context(), s.as(r))
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, err)
}

// ArrakisSnapshotVM is POST /v1/vms/{name}/snapshots: a commit with a tag.
func (s *Server) ArrakisSnapshotVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisSnapshotVMParams) {
	q, err := decode[ArrakisSnapshot](r, true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	id, err := arrakis.Snapshot(r.Context(), s.as(r), name, q.SnapshotId)
	s.answer(w, r, http.StatusOK, ArrakisSnapshot{SnapshotId: id}, err)
}
