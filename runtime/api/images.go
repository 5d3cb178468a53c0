package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/runtime"
)

// ListImages is GET /v1/images.
func (s *Server) ListImages(w http.ResponseWriter, r *http.Request) {
	list, err := s.as(r).ListImages(r.Context())
	s.answer(w, r, http.StatusOK, list, err)
}

// InspectImage is GET /v1/images/{image}.
func (s *Server) InspectImage(w http.ResponseWriter, r *http.Request, image ImageName) {
	i, err := s.as(r).InspectImage(r.Context(), image)
	s.answer(w, r, http.StatusOK, i, err)
}

// RemoveImage is DELETE /v1/images/{image}.
func (s *Server) RemoveImage(w http.ResponseWriter, r *http.Request, image ImageName, _ RemoveImageParams) {
	s.done(w, r, s.as(r).RemoveImage(r.Context(), image))
}

// TagImage is POST /v1/images/{image}/tags.
func (s *Server) TagImage(w http.ResponseWriter, r *http.Request, image ImageName, _ TagImageParams) {
	q, err := decode[TagImageRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	i, err := s.as(r).TagImage(r.Context(), image, q.Name)
	s.answer(w, r, http.StatusCreated, i, err)
}

// ImportImage is POST /v1/images/import.
func (s *Server) ImportImage(w http.ResponseWriter, r *http.Request, p ImportImageParams) {
	format := string(p.Format)
	if format == "" {
		format = "auto"
	}
	i, err := s.as(r).ImportImage(r.Context(), runtime.ImportRequest{Reader: r.Body, Name: p.Name, Format: format})
	s.answer(w, r, http.StatusCreated, i, err)
}

// ExportImage is GET /v1/images/{image}/export.
func (s *Server) ExportImage(w http.ResponseWriter, r *http.Request, image ImageName, p ExportImageParams) {
	format := string(p.Format)
	if format == "" {
		format = "oci"
	}
	out := &late{w: w, contentType: tarred}
	s.close(w, r, out, s.as(r).ExportImage(r.Context(), image, format, out))
}

// PullImage is POST /v1/images/pull.
func (s *Server) PullImage(w http.ResponseWriter, r *http.Request, _ PullImageParams) {
	q, err := decode[PullRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.making(w, r, func(ctx context.Context, progress io.Writer) (runtime.Image, error) {
		return s.as(r).PullImage(ctx, q.Ref, progress)
	})
}

// BootstrapImage is POST /v1/images/bootstrap.
func (s *Server) BootstrapImage(w http.ResponseWriter, r *http.Request, _ BootstrapImageParams) {
	q, err := decode[BootstrapRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.making(w, r, func(ctx context.Context, progress io.Writer) (runtime.Image, error) {
		return s.as(r).BootstrapImage(ctx, q.Name, progress)
	})
}

// BuildImage is POST /v1/builds. Nothing in the request names a path of the
// host.
func (s *Server) BuildImage(w http.ResponseWriter, r *http.Request, p BuildImageParams) {
	q := runtime.BuildRequest{
		Context: r.Body, ContextPath: p.Context, Dockerfile: p.Dockerfile, Names: p.Name, Target: p.Target,
		BuildArgs: map[string]string{}, BuildContexts: map[string]string{}, NoCache: p.NoCache, Progress: string(p.Progress),
	}
	if q.Progress == "" {
		q.Progress = "plain"
	}
	var wrong []string
	for _, kv := range p.BuildArg {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			wrong = append(wrong, fmt.Sprintf("build_arg: %.60q is not K=V", kv))
		}
		q.BuildArgs[k] = v
	}
	for _, kv := range p.BuildContext {
		k, v, ok := strings.Cut(kv, "=")
		scheme, _, _ := strings.Cut(v, "://")
		inside := strings.HasPrefix(v, "./") && p.Context != ""
		if !ok || k == "" || !inside && scheme != "docker-image" && scheme != "https" && scheme != "http" && scheme != "git" && !callOf(r).shell {
			wrong = append(wrong, fmt.Sprintf("build_context: %.60q is not NAME=docker-image://, https:// or git://, or ./DIR beside a context", kv))
		}
		q.BuildContexts[k] = v
	}
	if len(wrong) > 0 {
		s.fail(w, r, wrongRequest(wrong))
		return
	}
	secrets, remove, err := keepSecrets(p.SietchBuildSecrets)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer remove()
	q.Secrets = secrets
	s.making(w, r, func(ctx context.Context, progress io.Writer) (runtime.Image, error) {
		q.ProgressOut = progress
		return s.as(r).Build(ctx, q)
	})
}

// keepSecrets writes the secrets of a build where the builder finds them, for as
// long as it needs them.
func keepSecrets(header string) (list []runtime.BuildSecret, remove func(), err error) {
	if header == "" {
		return nil, func() {}, nil
	}
	wrong := usage("Sietch-Build-Secrets is not base64 of a JSON object of base64 values", "")
	data, err := base64.StdEncoding.DecodeString(header)
	if err != nil {
		return nil, nil, wrong
	}
	var values map[string][]byte
	if json.Unmarshal(data, &values) != nil {
		return nil, nil, wrong
	}
	dir, err := os.MkdirTemp("", "sietch-secrets-") // 0700
	if err != nil {
		return nil, nil, fmt.Errorf("keep build secrets: %w", err)
	}
	n := 0
	for id, value := range values {
		path := filepath.Join(dir, fmt.Sprint(n))
		n++
		if err := os.WriteFile(path, value, 0o600); err != nil {
			os.RemoveAll(dir)
			return nil, nil, fmt.Errorf("keep build secrets: %w", err)
		}
		list = append(list, runtime.BuildSecret{ID: id, Source: path})
	}
	return list, func() { os.RemoveAll(dir) }, nil
}

// unreadBody is how much of a body is read for nothing, to keep a connection.
const unreadBody = 256 << 10

// making answers with the progress of what makes an image, then with the image.
func (s *Server) making(w http.ResponseWriter, r *http.Request, fn func(context.Context, io.Writer) (runtime.Image, error)) {
	// The body is still read while the answer has begun.
	http.NewResponseController(w).EnableFullDuplex()
	out := &lines{w: w}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	progress := &progressLines{out: out, broken: cancel}
	image, err := fn(ctx, progress)
	// What is left of the body would be taken for the connection's next request.
	if n, _ := io.CopyN(io.Discard, r.Body, unreadBody); n == unreadBody {
		w.Header().Set("Connection", "close")
	}
	progress.flush()
	if err == nil {
		out.send(struct {
			Image runtime.Image `json:"image"`
		}{image})
		return
	}
	s.finish(w, r, out, err)
}

// progressLines sends each line of progress as it is complete.
type progressLines struct {
	out    *lines
	broken func(error)
	rest   []byte
}

// maxProgressLine is where a line that does not end is sent all the same.
const maxProgressLine = 4 << 20

func (p *progressLines) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok && len(line) < maxProgressLine {
			return len(b), nil
		}
		p.rest = rest
		if err := p.send(line); err != nil {
			p.broken(err)
			return 0, err
		}
	}
}

func (p *progressLines) send(line []byte) error {
	text := string(bytes.TrimSuffix(line, []byte("\r")))
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return p.out.send(struct {
		Progress string `json:"progress"`
	}{text})
}

func (p *progressLines) flush() {
	if len(p.rest) > 0 {
		p.send(p.rest)
		p.rest = nil
	}
}
