package api

import (
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
)

// Commit is POST /v1/sandboxes/{name}/commits.
func (s *Server) Commit(w http.ResponseWriter, r *http.Request, name SandboxName, _ CommitParams) {
	q, err := decode[CommitRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	c, err := s.as(r).Commit(r.Context(), runtime.CommitRequest{Name: name, Message: q.Message, Author: q.Author, Labels: q.Labels, DiskOnly: q.DiskOnly})
	s.answer(w, r, http.StatusCreated, c, err)
}

// Checkout is POST /v1/sandboxes/{name}/checkout.
func (s *Server) Checkout(w http.ResponseWriter, r *http.Request, name SandboxName, _ CheckoutParams) {
	q, err := decode[CheckoutRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	box, err := s.as(r).Checkout(r.Context(), runtime.CheckoutRequest{Name: name, Ref: q.Ref, NewBranch: q.NewBranch, NoSave: q.NoSave})
	s.answer(w, r, http.StatusOK, box, err)
}

// Reflog is GET /v1/sandboxes/{name}/reflog.
func (s *Server) Reflog(w http.ResponseWriter, r *http.Request, name SandboxName) {
	list, err := s.as(r).Reflog(r.Context(), name)
	s.answer(w, r, http.StatusOK, list, err)
}

// Fork is POST /v1/forks.
func (s *Server) Fork(w http.ResponseWriter, r *http.Request, _ ForkParams) {
	q, err := decode[ForkRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := &lines{w: w}
	_, err = s.as(r).Fork(r.Context(), runtime.ForkRequest{From: q.From, N: max(1, q.N), Prefix: q.Prefix, Branch: q.Branch, Labels: q.Labels},
		func(f runtime.Fork) { out.send(f) })
	s.finish(w, r, out, err)
}

// Log is GET /v1/commits.
func (s *Server) Log(w http.ResponseWriter, r *http.Request, p LogParams) {
	list, err := s.as(r).Log(r.Context(), runtime.LogRequest{Ref: p.Ref, N: p.N})
	s.answer(w, r, http.StatusOK, list, err)
}

// Show is GET /v1/commits/{ref}.
func (s *Server) Show(w http.ResponseWriter, r *http.Request, ref CommitRef) {
	c, err := s.as(r).Show(r.Context(), ref)
	s.answer(w, r, http.StatusOK, c, err)
}

// ListBranches is GET /v1/branches.
func (s *Server) ListBranches(w http.ResponseWriter, r *http.Request) {
	list, err := s.as(r).ListRefs(r.Context(), runtime.BranchRef)
	s.answer(w, r, http.StatusOK, list, err)
}

// ListTags is GET /v1/tags.
func (s *Server) ListTags(w http.ResponseWriter, r *http.Request) {
	list, err := s.as(r).ListRefs(r.Context(), runtime.TagRef)
	s.answer(w, r, http.StatusOK, list, err)
}

// CreateBranch is POST /v1/branches.
func (s *Server) CreateBranch(w http.ResponseWriter, r *http.Request, _ CreateBranchParams) {
	s.createRef(w, r, runtime.BranchRef)
}

// CreateTag is POST /v1/tags.
func (s *Server) CreateTag(w http.ResponseWriter, r *http.Request, _ CreateTagParams) {
	s.createRef(w, r, runtime.TagRef)
}

func (s *Server) createRef(w http.ResponseWriter, r *http.Request, kind runtime.RefKind) {
	q, err := decode[RefRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ref, err := s.as(r).CreateRef(r.Context(), kind, q.Name, q.Ref)
	s.answer(w, r, http.StatusCreated, ref, err)
}

// RenameBranch is PATCH /v1/branches/{branch}.
func (s *Server) RenameBranch(w http.ResponseWriter, r *http.Request, branch string, _ RenameBranchParams) {
	q, err := decode[RenameRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.done(w, r, s.as(r).RenameBranch(r.Context(), branch, q.Name))
}

// DeleteBranch is DELETE /v1/branches/{branch}.
func (s *Server) DeleteBranch(w http.ResponseWriter, r *http.Request, branch string, _ DeleteBranchParams) {
	s.done(w, r, s.as(r).DeleteRef(r.Context(), runtime.BranchRef, branch))
}

// DeleteTag is DELETE /v1/tags/{tag}.
func (s *Server) DeleteTag(w http.ResponseWriter, r *http.Request, tag string, _ DeleteTagParams) {
	s.done(w, r, s.as(r).DeleteRef(r.Context(), runtime.TagRef, tag))
}
