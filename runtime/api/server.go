package api

import (
	_ "embed"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
	"github.com/sietch-dev/sietch/runtime/api/mcp"
)

// Document is openapi.yaml.
//
//go:embed openapi.yaml
var Document []byte

// Options of [New]; the zero value, with an Engine, serves whoever can connect.
type Options struct {
	Engine  runtime.Engine
	Version string
	Logger  *slog.Logger // nil: none

	// Tokens says who may come in; nil: everybody that can connect.
	Tokens *Tokens
	// AnyHost lets requests name this server as they like. Without it and
	// without tokens only names of this machine's own loopback are answered, so
	// that no web page can reach the server by a name it controls.
	AnyHost bool

	// DefaultImage is what POST /v1/vms boots when it names none; empty:
	// [DefaultImage].
	DefaultImage string
	// MaxSandboxes bounds how many there may be, running or not; 0: no bound.
	MaxSandboxes int
	// IdlePause commits and stops a sandbox that nobody has used for so long; the
	// next request that needs it brings it back. 0: never. See [Server.Run].
	IdlePause time.Duration
	// StateDir is where it is kept what IdlePause put aside, and what was answered
	// to calls with an Idempotency-Key; empty: in memory.
	StateDir string

	// Rate is how many requests a second one token may make, over a while; 0: no
	// bound. Burst is how many at once; 0: twice the rate.
	Rate  float64
	Burst int
	// MaxBodyBytes bounds JSON bodies; 0: 64 MiB. MaxUploadBytes bounds
	// archives and files; 0: 64 GiB.
	MaxBodyBytes, MaxUploadBytes int64
	// CallTimeout bounds what neither streams nor waits for a command; 0: half an
	// hour.
	CallTimeout time.Duration
}

// DefaultImage is the default of Options.DefaultImage.
const DefaultImage = arrakis.DefaultImage

// Server is the API as an http.Handler.
type Server struct {
	o         Options
	log       *slog.Logger
	engine    *waking
	document  *document
	metrics   *metrics
	budget    *budget
	limiters  *limiters
	once      *replays
	sandboxes places
	ready     readiness
	calls     calls
	mux       *http.ServeMux
	mcp       http.Handler

	mu      sync.Mutex
	closing chan struct{} // closed by Drain
	closed  bool
}

// New makes a server. It does nothing by itself but answer; [Server.Run] does
// what is due without a request.
func New(o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.DefaultImage == "" {
		o.DefaultImage = DefaultImage
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 64 << 20
	}
	if o.MaxUploadBytes == 0 {
		o.MaxUploadBytes = 64 << 30
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 30 * time.Minute
	}
	d, err := theDocument()
	if err != nil {
		return nil, fmt.Errorf("read openapi.yaml: %w", err)
	}
	engine, err := newWaking(o.Engine, o.IdlePause, o.StateDir, o.Logger)
	if err != nil {
		return nil, err
	}
	once, err := newReplays(o.StateDir, func(err error) { o.Logger.Warn("call not noted", "err", err) })
	if err != nil {
		return nil, err
	}
	s := &Server{
		o: o, log: o.Logger, engine: engine, document: d,
		budget: &budget{free: outputBudget}, limiters: newLimiters(o.Rate, o.Burst), once: once,
		closing: make(chan struct{}),
	}
	s.metrics = newMetrics(prometheus.NewRegistry(), o.Engine, o.Version)
	engine.onPark, engine.onWake = s.metrics.parked.Inc, s.metrics.woken.Inc
	s.mux = http.NewServeMux()
	HandlerWithOptions(s, StdHTTPServerOptions{
		BaseRouter:       s.mux,
		Middlewares:      []MiddlewareFunc{s.matched},
		ErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) { s.fail(w, r, parameterError(err)) },
	})
	for _, path := range []string{"/v1/sandboxes/{name}/proxy/{port}/", "/v1/vms/{name}/proxy/{port}/"} {
		s.mux.HandleFunc(path, s.proxyPath)
	}
	s.mux.HandleFunc("/mcp", s.modelContext)
	s.mcp = mcp.Handler(s.as, mcp.Options{Version: o.Version, Logger: o.Logger, DefaultImage: o.DefaultImage, MaxRequestBytes: o.MaxBodyBytes})
	return s, nil
}

// Drain makes streams that would go on for ever end, so that the HTTP server can
// be shut down. Idempotent.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

// Configure gives an HTTP server the limits of time that fit this API.
func (s *Server) Configure(h *http.Server) {
	h.Handler = s
	h.ReadHeaderTimeout = 10 * time.Second
	h.IdleTimeout = 2 * time.Minute
	h.MaxHeaderBytes = 1 << 20 // secrets of a build are in one
	h.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
}

// NeedsTokens says whether an address may only be listened on with tokens: all
// but loopback ones.
func NeedsTokens(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return true
	}
	if host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}
