package api

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// call is what is known of a request on its way.
type call struct {
	id    string
	route string // pattern; empty until it is found
	name  string // sandbox
	who   *Token // nil: nobody asked
	local bool   // came by the unix socket
	shell bool   // and from the shell: see openapi.yaml
	err   error
	out   *recorder
}

type callKey struct{}

func callOf(r *http.Request) *call {
	c, _ := r.Context().Value(callKey{}).(*call)
	return c
}

// ServeHTTP is the way of every request. See the package's picture.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	c := &call{id: requestID(r), local: isLocal(r)}
	c.shell = c.local && r.Header.Get(callerHeader) == callerShell
	c.out = &recorder{ResponseWriter: w}
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	w = c.out
	w.Header().Set("X-Request-Id", c.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")

	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		if p := recover(); p != nil {
			s.panicked(w, r, c, p)
		}
		s.wrote(r, c, time.Since(began))
	}()

	if err := s.admit(r, c); err != nil {
		s.fail(w, r, err)
		return
	}
	if port, name, ok := hostTarget(r.Host); ok {
		c.route, c.name = "proxy by host name", name
		s.proxyTo(w, r, name, port, "")
		return
	}
	r.URL.Path, r.URL.RawPath = unaliased(r.URL.Path), unaliased(r.URL.RawPath)
	if h, pattern := s.mux.Handler(r); pattern == "" {
		s.noRoute(w, r, h)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// admit says whether a request may come in at all.
func (s *Server) admit(r *http.Request, c *call) error {
	select {
	case <-s.closing:
		return refusal(errShuttingDown, "the server is shutting down", "try again in a moment")
	default:
	}
	if err := s.checkHost(r, c); err != nil {
		return err
	}
	if err := s.authenticate(r, c); err != nil {
		return err
	}
	return s.limiters.allow(c)
}

// matched runs inside a route, once its parameters have been read.
func (s *Server) matched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r)
		c.route, c.name = r.Pattern, r.PathValue("name")
		op := s.document.operation(r.Pattern)
		if op.id != "cancelCall" {
			var leave func()
			r, leave = s.calls.enter(r, c)
			defer leave()
		}
		if c.shell {
			next.ServeHTTP(w, r)
			return
		}
		limit := s.o.MaxUploadBytes
		if op.json {
			limit = s.o.MaxBodyBytes
		}
		r.Body = newPatient(w, http.MaxBytesReader(w, r.Body, limit))
		if !op.open {
			ctx, cancel := context.WithTimeout(r.Context(), s.o.CallTimeout)
			defer cancel()
			r = r.WithContext(ctx)
		}
		if !op.json {
			defer drain(r.Body)
		}
		if err := s.document.validate(r, op); err != nil {
			s.fail(w, r, err)
			return
		}
		if key := r.Header.Get("Idempotency-Key"); key != "" && op.mutates {
			s.onceOnly(w, r, key, op, next)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// noRoute is the answer of the mux where it found no route: 404, 405, or a
// redirect to the clean form of a path.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	switch {
	case probe.status == http.StatusMethodNotAllowed:
		w.Header().Set("Allow", probe.header.Get("Allow"))
		s.fail(w, r, refusal(errMethod, fmt.Sprintf("%s is not a method of %s", r.Method, r.URL.Path), "it takes "+probe.header.Get("Allow")))
	default:
		s.fail(w, r, refusal(runtime.ErrNotFound, "no such route: "+r.URL.Path, "the API is described at /v1/openapi.yaml"))
	}
}

// probe takes an answer's head and drops the rest.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header { return p.header }
func (p *probe) WriteHeader(status int) {
	if p.status == 0 {
		p.status = status
	}
}
func (p *probe) Write(b []byte) (int, error) { p.WriteHeader(http.StatusOK); return len(b), nil }

// unaliased gives the routes of Arrakis the prefix that its older clients leave
// out.
func unaliased(path string) string {
	if path == "/health" || path == "/vms" || strings.HasPrefix(path, "/vms/") {
		return "/v1" + path
	}
	return path
}

// requestID is the caller's own where that is fit to be logged.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	fit := len(id) > 0 && len(id) <= 128
	for _, b := range []byte(id) {
		fit = fit && (b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("-_.:/+=", b) >= 0)
	}
	if fit {
		return id
	}
	return rand.Text()
}

// isLocal says whether a request came by the unix socket, which only the user
// that owns the data directory can open.
func isLocal(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}

// wrote logs and counts a call. What is asked for in a query or body may be
// secret and is left out.
func (s *Server) wrote(r *http.Request, c *call, took time.Duration) {
	route, status := c.route, c.out.status
	if route == "" {
		route = "none"
	}
	if status == 0 {
		status = http.StatusOK
		if c.err != nil {
			status, _ = explain(c.err)
		}
	}
	s.metrics.count(r.Method, route, status, took)
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("id", c.id), slog.String("method", r.Method), slog.String("route", route),
		slog.Int("status", status), slog.Int64("bytes", c.out.bytes), slog.Duration("took", took.Round(time.Microsecond)),
	}
	if c.name != "" {
		attrs = append(attrs, slog.String("sandbox", c.name))
	}
	if c.who != nil {
		attrs = append(attrs, slog.String("token", c.who.Name))
	}
	if !c.local {
		attrs = append(attrs, slog.String("remote", r.RemoteAddr))
	}
	if c.err != nil {
		_, body := explain(c.err)
		attrs = append(attrs, slog.String("code", string(body.Code)))
		if status >= 500 {
			level = slog.LevelError
			attrs = append(attrs, slog.String("err", c.err.Error()))
		}
	}
	s.log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}

// panicked answers for a handler that fell over; the one that net/http knows
// ends the connection as it is meant to.
func (s *Server) panicked(w http.ResponseWriter, r *http.Request, c *call, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	stack := make([]byte, 16<<10)
	stack = stack[:goruntime.Stack(stack, false)]
	s.log.Error("handler fell over", "id", c.id, "panic", fmt.Sprint(p), "stack", string(stack))
	s.fail(w, r, errors.New("the server made a mistake; its log has it under request "+c.id))
}

// recorder remembers status and size of an answer.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Hijack is here for those who do not look for Unwrap.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

func (w *recorder) Flush() { http.NewResponseController(w.ResponseWriter).Flush() }

// drained is how much of an upload is read that nobody wants any more.
const drained = 1 << 30

// drain reads what the handler left of an upload. A client that is still sending
// when the connection is closed never gets to read why.
func drain(body io.Reader) { io.CopyN(io.Discard, body, drained) }

// patient is a body whose sender may take long, but not stop: a connection that
// brings nothing for bodySilence is given up.
type patient struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool
}

const bodySilence = time.Minute

func newPatient(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	return &patient{ReadCloser: body, control: http.NewResponseController(w)}
}

func (p *patient) Read(b []byte) (int, error) {
	if p.ended {
		return p.ReadCloser.Read(b)
	}
	p.control.SetReadDeadline(time.Now().Add(bodySilence))
	n, err := p.ReadCloser.Read(b)
	if err != nil {
		p.ended = true
	}
	// None is left behind: the server waits on this connection for its end.
	p.control.SetReadDeadline(time.Time{})
	return n, err
}
