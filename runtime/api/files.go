package api

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/guestfile"
)

// ReadFile is GET /v1/sandboxes/{name}/files.
func (s *Server) ReadFile(w http.ResponseWriter, r *http.Request, name SandboxName, p ReadFileParams) {
	out := &late{w: w, contentType: octets}
	err := guestfile.Read(r.Context(), s.as(r), name, p.Path, func(size int64) io.Writer {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		return out
	})
	s.close(w, r, out, err)
}

// WriteFile is PUT /v1/sandboxes/{name}/files.
func (s *Server) WriteFile(w http.ResponseWriter, r *http.Request, name SandboxName, p WriteFileParams) {
	mode, err := modeOf(p.Mode, 0o644)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	engine := s.as(r)
	body, size := io.Reader(r.Body), r.ContentLength
	if size < 0 {
		// A tar says sizes before contents.
		f, n, err := spool(r.Body)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer f.Close()
		body, size = f, n
	}
	s.done(w, r, guestfile.Write(r.Context(), engine, name, guestfile.File{Path: p.Path, Mode: mode, UID: p.Uid, GID: p.Gid, SizeBytes: size, Parents: p.Parents}, body))
}

// spool keeps a body of unknown length on disk; the file has no name any more.
func spool(body io.Reader) (*os.File, int64, error) {
	f, err := os.CreateTemp("", "sietch-upload-")
	if err != nil {
		return nil, 0, fmt.Errorf("keep upload: %w", err)
	}
	os.Remove(f.Name())
	n, err := io.Copy(f, body)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("keep upload: %w", err)
	}
	return f, n, nil
}

// modeOf reads permissions as chmod does.
func modeOf(text string, def int64) (int64, error) {
	if text == "" {
		return def, nil
	}
	mode, err := strconv.ParseInt(text, 8, 32)
	if err != nil || mode < 0 || mode > 0o7777 {
		return 0, usage(fmt.Sprintf("mode %.20q is not octal permissions", text), "such as 644")
	}
	return mode, nil
}

// RemovePath is DELETE /v1/sandboxes/{name}/files.
func (s *Server) RemovePath(w http.ResponseWriter, r *http.Request, name SandboxName, p RemovePathParams) {
	s.done(w, r, s.as(r).RemovePath(r.Context(), name, p.Path, p.Recursive))
}

// StatPath is GET /v1/sandboxes/{name}/files/stat.
func (s *Server) StatPath(w http.ResponseWriter, r *http.Request, name SandboxName, p StatPathParams) {
	st, err := s.as(r).StatPath(r.Context(), name, p.Path)
	s.answer(w, r, http.StatusOK, st, err)
}

// ListDir is GET /v1/sandboxes/{name}/files/list.
func (s *Server) ListDir(w http.ResponseWriter, r *http.Request, name SandboxName, p ListDirParams) {
	list, err := s.as(r).ListDir(r.Context(), name, p.Path)
	s.answer(w, r, http.StatusOK, list, err)
}

// MakeDir is POST /v1/sandboxes/{name}/files/mkdir.
func (s *Server) MakeDir(w http.ResponseWriter, r *http.Request, name SandboxName, _ MakeDirParams) {
	q, err := decode[MakeDirRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	mode, err := modeOf(q.Mode, 0o755)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.done(w, r, s.as(r).MakeDir(r.Context(), name, q.Path, uint32(mode), q.Parents))
}

// ReadTar is GET /v1/sandboxes/{name}/files/tar.
func (s *Server) ReadTar(w http.ResponseWriter, r *http.Request, name SandboxName, p ReadTarParams) {
	out := &late{w: w, contentType: tarred}
	s.close(w, r, out, s.as(r).CopyOut(r.Context(), runtime.CopyOutRequest{Name: name, Path: p.Path, FollowLink: p.FollowLink}, out))
}

// WriteTar is PUT /v1/sandboxes/{name}/files/tar.
func (s *Server) WriteTar(w http.ResponseWriter, r *http.Request, name SandboxName, p WriteTarParams) {
	s.done(w, r, s.as(r).CopyIn(r.Context(), runtime.CopyInRequest{Name: name, Path: p.Path}, r.Body))
}

// WatchPath is GET /v1/sandboxes/{name}/files/watch. The answer begins when
// changes are being watched.
func (s *Server) WatchPath(w http.ResponseWriter, r *http.Request, name SandboxName, p WatchPathParams) {
	ctx, cancel := s.draining(r.Context())
	defer cancel()
	s.metrics.streams.WithLabelValues("watch").Inc()
	defer s.metrics.streams.WithLabelValues("watch").Dec()
	var out *serverEvents
	stop := func() {}
	defer func() { stop() }()
	started := func() {
		out = newServerEvents(w)
		out.send("", "ready", struct{}{})
		stop = out.keepAlive()
	}
	err := s.as(r).WatchPath(ctx, runtime.WatchRequest{Name: name, Path: p.Path, Recursive: p.Recursive, Started: started}, func(e runtime.FileEvent) error {
		return out.send("", "change", e)
	})
	if err != nil && out == nil {
		s.fail(w, r, err)
	} else if out != nil {
		s.endEvents(ctx, r, out, err)
	}
}
