package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// proxyPath is /v1/sandboxes/{name}/proxy/{port}/… and the same under /v1/vms.
func (s *Server) proxyPath(w http.ResponseWriter, r *http.Request) {
	c := callOf(r)
	c.route, c.name = r.Pattern, r.PathValue("name")
	if err := runtime.ValidateName("sandbox", c.name); err != nil {
		s.fail(w, r, err)
		return
	}
	n, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || n == 0 {
		s.fail(w, r, usage(fmt.Sprintf("port %.20q is not between 1 and 65535", r.PathValue("port")), ""))
		return
	}
	kind := "sandboxes"
	if strings.HasPrefix(r.Pattern, "/v1/vms/") {
		kind = "vms"
	}
	s.proxyTo(w, r, c.name, uint16(n), "/v1/"+kind+"/"+c.name+"/proxy/"+r.PathValue("port"))
}

// proxyTo passes a request on to a service in a sandbox. prefix is what of the
// path is the server's.
func (s *Server) proxyTo(w http.ResponseWriter, r *http.Request, name string, port uint16, prefix string) {
	engine := s.as(r)
	s.metrics.streams.WithLabelValues("proxy").Inc()
	defer s.metrics.streams.WithLabelValues("proxy").Dec()
	// One connection a request: the sandbox behind the name may be another one
	// the next time, or the same one at another time of its life.
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: 0,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := engine.DialPort(ctx, name, port)
			if err != nil {
				return nil, err
			}
			return asConn(c), nil
		},
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			u := p.Out.URL
			u.Scheme, u.Host = "http", net.JoinHostPort("localhost", strconv.Itoa(int(port)))
			u.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(u.Path, prefix), "/")
			if u.RawPath != "" {
				u.RawPath = "/" + strings.TrimPrefix(strings.TrimPrefix(u.RawPath, prefix), "/")
			}
			p.SetXForwarded()
			p.Out.Host = p.In.Host
			if prefix != "" {
				p.Out.Header.Set("X-Forwarded-Prefix", prefix)
			}
			s.withoutToken(p.Out.Header)
		},
		ModifyResponse: func(a *http.Response) error {
			// What a guest says is not what this server says: under the server's
			// own name its pages get an origin of their own, so that their scripts
			// cannot use the API with whoever looks at them.
			if prefix != "" {
				a.Header.Add("Content-Security-Policy", "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts")
				a.Header.Del("Set-Cookie")
			}
			a.Header.Del("X-Request-Id")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.fail(w, r, unreachable(err, name, port))
		},
	}
	proxy.ServeHTTP(w, r)
}

// unreachable gives the error of a service its kind; what the engine says about
// the sandbox is passed on.
func unreachable(err error, name string, port uint16) error {
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return err
		}
	}
	return &runtime.Error{Kind: errUnreachable, Message: fmt.Sprintf("port %d of %s does not answer", port, name), Err: err, Hint: "does a service listen there? sietch exec " + name + " -- ss -ltn"}
}

// withoutToken takes the server's token out of what a guest gets to see.
func (s *Server) withoutToken(h http.Header) {
	if h.Get(tokenHeader) != "" {
		h.Del(tokenHeader)
		return // Authorization is the service's
	}
	if s.o.Tokens != nil {
		h.Del("Authorization")
	}
}

// asConn gives a stream of the engine what the HTTP client wants of a
// connection. Deadlines are the contexts'.
func asConn(c io.ReadWriteCloser) net.Conn {
	if n, ok := c.(net.Conn); ok {
		return n
	}
	return streamConn{c}
}

type streamConn struct{ io.ReadWriteCloser }

type guestAddr struct{}

func (guestAddr) Network() string { return "tcp" }
func (guestAddr) String() string  { return "guest" }

func (streamConn) LocalAddr() net.Addr              { return guestAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return guestAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }
