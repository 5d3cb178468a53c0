package api

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/runtime"
)

// keptOutput is what a blocking exec keeps of each stream when not asked
// otherwise.
const keptOutput = 16 << 20

// Exec is POST /v1/sandboxes/{name}/exec. When the client goes, its context
// ends, and the engine ends the process group.
func (s *Server) Exec(w http.ResponseWriter, r *http.Request, name SandboxName, _ ExecParams) {
	q, err := decode[ExecRequest](r, false)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	stdin, err := inputOf(q)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	limit := q.MaxOutputBytes
	if limit == 0 {
		limit = keptOutput
	}
	stdout, stderr := s.keep(limit), s.keep(limit)
	defer stdout.release()
	defer stderr.release()
	s.metrics.execs.Inc()
	defer s.metrics.execs.Dec()
	began := time.Now()
	status, err := s.as(r).Exec(r.Context(), runtime.ExecRequest{
		Name: name, Args: q.Args, Env: q.Env, WorkingDir: q.Workdir, User: q.User,
		Stdin: stdin != nil, Timeout: milliseconds(q.TimeoutMs),
	}, runtime.ExecIO{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := ExecResult{ExitCode: status.Code, Signal: status.Signal, Error: status.Error,
		Truncated: stdout.truncated || stderr.truncated, DurationMs: float64(time.Since(began).Microseconds()) / 1000}
	out.Stdout, out.StdoutBase64 = textOf(stdout.buf.Bytes())
	out.Stderr, out.StderrBase64 = textOf(stderr.buf.Bytes())
	writeJSON(w, http.StatusOK, out)
}

// inputOf is the stdin of a request; nil: none.
func inputOf(q ExecRequest) (io.Reader, error) {
	switch {
	case q.Stdin != "" && q.StdinBase64 != "":
		return nil, usage("give either stdin or stdin_base64", "")
	case q.Stdin != "":
		return strings.NewReader(q.Stdin), nil
	case q.StdinBase64 != "":
		data, err := base64.StdEncoding.DecodeString(q.StdinBase64)
		if err != nil {
			return nil, usage("stdin_base64 is not base64", "")
		}
		return strings.NewReader(string(data)), nil
	}
	return nil, nil
}

// textOf is output as JSON can carry it: text, and exact where that is not.
func textOf(b []byte) (text, exact string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), base64.StdEncoding.EncodeToString(b)
}
