package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// tokenHeader carries the token where Authorization is meant for somebody else.
const tokenHeader = "Sietch-Token"

// callerHeader says who calls, where that makes a difference.
const (
	callerHeader = "Sietch-Caller"
	callerShell  = "shell"
)

// checkHost answers requests to a server without tokens only when they are for a
// name of this machine's own loopback: a web page can make its own name lead
// here, and would then be let in with whoever looks at it. Requests that a page
// of another origin makes are refused in any case.
func (s *Server) checkHost(r *http.Request, c *call) error {
	if !c.local && !s.o.AnyHost && s.o.Tokens == nil && !loopbackName(r.Host) {
		return refusal(errWrongHost, fmt.Sprintf("this server is not called %.100q", r.Host), "use localhost or 127.0.0.1, or give the server tokens")
	}
	if _, _, ok := hostTarget(r.Host); ok {
		return nil // the service's own pages talk to it
	}
	if err := crossOrigin.Check(r); err != nil {
		return refusal(errForbidden, "a web page of another origin may not do that", "")
	}
	return nil
}

// crossOrigin refuses what browsers send for pages of other origins. Answers to
// what it lets through (GET) cannot be read by them.
var crossOrigin = http.NewCrossOriginProtection()

func loopbackName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

var proxyHost = regexp.MustCompile(`^([0-9]{1,5})-([a-z0-9][a-z0-9._-]{0,62})\.localhost$`)

// hostTarget reads PORT-NAME.localhost.
func hostTarget(host string) (port uint16, name string, ok bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	m := proxyHost.FindStringSubmatch(strings.ToLower(strings.TrimSuffix(host, ".")))
	if m == nil {
		return 0, "", false
	}
	n, err := strconv.ParseUint(m[1], 10, 16)
	return uint16(n), m[2], err == nil && n != 0
}

// open are the paths that anybody may ask: they say nothing of what is here.
var open = map[string]bool{"/healthz": true, "/readyz": true, "/v1/openapi.yaml": true}

// authenticate finds out who calls. The unix socket is its owner's.
func (s *Server) authenticate(r *http.Request, c *call) error {
	if s.o.Tokens == nil || c.local {
		return nil
	}
	_, _, proxied := hostTarget(r.Host)
	if open[r.URL.Path] && !proxied {
		return nil
	}
	secret := presented(r)
	if secret == "" {
		return refusal(errUnauthorized, "a token is needed", "send it as Authorization: Bearer TOKEN, or as the password of Basic; sietch token create makes one")
	}
	who, err := s.o.Tokens.Find(secret)
	if err != nil {
		return err
	}
	c.who = who
	return nil
}

// presented is the token of a request.
func presented(r *http.Request) string {
	if t := r.Header.Get(tokenHeader); t != "" {
		return t
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}
