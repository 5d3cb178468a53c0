package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
	"github.com/sietch-dev/sietch/runtime/api/guestfile"
)

// ArrakisRunCommand is POST /v1/vms/{name}/cmd.
func (s *Server) ArrakisRunCommand(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisRunCommandParams) {
	q, err := decode[ArrakisCommand](r, true)
	if err == nil {
		err = arrakis.CheckCommand(q.Cmd)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	engine := s.as(r)
	if q.Blocking != nil && !*q.Blocking {
		p, err := engine.StartProcess(r.Context(), arrakis.Command(name, q.Cmd))
		s.answer(w, r, http.StatusOK, ArrakisCommandResult{Output: "started in the background as process " + p.ID, ProcessId: p.ID}, err)
		return
	}
	output := s.keep(keptOutput)
	defer output.release()
	s.metrics.execs.Inc()
	defer s.metrics.execs.Dec()
	status, err := engine.Exec(r.Context(), arrakis.Command(name, q.Cmd), runtime.ExecIO{Stdout: output, Stderr: output})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	text, _ := textOf(output.buf.Bytes())
	a := ArrakisCommandResult{Output: text, Stdout: text, ExitCode: status.Code, Truncated: output.truncated}
	switch {
	case status.Error != "":
		a.Error = status.Error
	case status.Code != 0:
		a.Error = fmt.Sprintf("exit status %d", status.Code)
	}
	writeJSON(w, http.StatusOK, a)
}

// ArrakisWriteFiles is POST /v1/vms/{name}/files.
func (s *Server) ArrakisWriteFiles(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisWriteFilesParams) {
	q, err := decode[ArrakisFiles](r, true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	contents := make([][]byte, len(q.Files))
	var wrong []string
	for i, f := range q.Files {
		contents[i] = []byte(f.Content)
		switch {
		case f.Path == "" || strings.HasSuffix(f.Path, "/") || strings.ContainsRune(f.Path, 0):
			wrong = append(wrong, fmt.Sprintf("files.%d: path %.100q is not that of a file", i, f.Path))
		case f.ContentBase64 != "":
			if contents[i], err = base64.StdEncoding.DecodeString(f.ContentBase64); err != nil || f.Content != "" {
				wrong = append(wrong, fmt.Sprintf("files.%d: contentBase64 is not base64, or there is content too", i))
			}
		}
	}
	if len(wrong) > 0 {
		s.fail(w, r, wrongRequest(wrong))
		return
	}
	engine := s.as(r)
	for i, f := range q.Files {
		target := guestfile.File{Path: arrakis.Path(f.Path), Mode: 0o644, SizeBytes: int64(len(contents[i])), Parents: true}
		if err := guestfile.Write(r.Context(), engine, name, target, bytes.NewReader(contents[i])); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	if len(q.Files) == 0 { // that there is such a machine is to be known all the same
		if _, err := engine.Inspect(r.Context(), name); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, struct{}{})
}

// ArrakisReadFiles is GET /v1/vms/{name}/files.
func (s *Server) ArrakisReadFiles(w http.ResponseWriter, r *http.Request, name SandboxName, p ArrakisReadFilesParams) {
	engine := s.as(r)
	if _, err := engine.Inspect(r.Context(), name); err != nil {
		s.fail(w, r, err)
		return
	}
	var a ArrakisFilesRead
	var all []*kept
	defer func() {
		for _, k := range all {
			k.release()
		}
	}()
	for _, file := range strings.Split(p.Paths, ",") {
		content := s.keep(keptOutput)
		all = append(all, content)
		a.Files = append(a.Files, s.readOne(r.Context(), engine, name, file, content))
	}
	writeJSON(w, http.StatusOK, a)
}

func (s *Server) readOne(ctx context.Context, engine runtime.Engine, name, file string, content *kept) ArrakisFileRead {
	f := ArrakisFileRead{Path: file}
	if file == "" {
		f.Error = "path is empty"
		return f
	}
	err := guestfile.Read(ctx, engine, name, arrakis.Path(file), func(int64) io.Writer { return content })
	switch {
	case err != nil:
		f.Error = err.Error()
	case content.truncated:
		f.Error = "the file is larger than 16 MiB: read it with GET /v1/sandboxes/" + name + "/files"
	case utf8.Valid(content.buf.Bytes()):
		f.Content = content.buf.String()
	default:
		f.Content, f.ContentBase64 = textOf(content.buf.Bytes())
	}
	return f
}
