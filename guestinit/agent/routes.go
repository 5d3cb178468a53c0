package agent

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// codedError is an error that the host gets with its code.
type codedError struct {
	code string
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func coded(code, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

// errorCode is the code an error has for the host.
func errorCode(err error) string {
	var c *codedError
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return proto.CodeNoSpace
	case errors.Is(err, unix.ENOENT):
		return proto.CodeNotFound
	}
	return proto.CodeInternal
}

var codeStatus = map[string]int{
	proto.CodeNotFound: 404, proto.CodeInvalid: 400, proto.CodeNotReady: 503, proto.CodeExists: 409,
	proto.CodeNoSpace: 507, proto.CodeVersion: 400, proto.CodeInternal: 500,
}

// fail answers an error and reports whether the connection still works.
func (c *conn) fail(err error) bool {
	code := errorCode(err)
	return c.write(codeStatus[code], false, appendError(nil, code, err.Error()))
}

func (c *conn) ok(body []byte) bool { return c.write(200, false, body) }

type route struct {
	method  string
	upgrade string // token the request must ask for
	// inUse: the host only asks this of a machine that has its identity.
	inUse bool
	serve func(*conn, *request) (again bool)
}

var routes = map[string]route{
	"/v1/status":     {method: "GET", serve: (*conn).serveStatus},
	"/v1/identity":   {method: "POST", serve: (*conn).serveIdentity},
	"/v1/exec":       {method: "POST", upgrade: proto.UpgradeExec, serve: (*conn).serveExec},
	"/v1/sync":       {method: "POST", inUse: true, serve: (*conn).serveSync},
	"/v1/shutdown":   {method: "POST", inUse: true, serve: (*conn).serveShutdown},
	"/v1/files/stat": {method: "POST", inUse: true, serve: (*conn).serveStat},
	"/v1/files/put":  {method: "POST", inUse: true, upgrade: proto.UpgradeTar, serve: (*conn).servePut},
	"/v1/files/get":  {method: "POST", inUse: true, upgrade: proto.UpgradeTar, serve: (*conn).serveGet},

	"/v1/files/list":   {method: "POST", inUse: true, upgrade: proto.UpgradeRecords, serve: (*conn).serveList},
	"/v1/files/mkdir":  {method: "POST", inUse: true, serve: (*conn).serveMakeDir},
	"/v1/files/remove": {method: "POST", inUse: true, serve: (*conn).serveRemove},
	"/v1/files/watch":  {method: "POST", inUse: true, upgrade: proto.UpgradeRecords, serve: (*conn).serveWatch},

	"/v1/processes/start":   {method: "POST", inUse: true, serve: (*conn).serveStart},
	"/v1/processes/list":    {method: "POST", inUse: true, upgrade: proto.UpgradeRecords, serve: (*conn).serveProcesses},
	"/v1/processes/inspect": {method: "POST", inUse: true, serve: (*conn).serveInspect},
	"/v1/processes/wait":    {method: "POST", inUse: true, upgrade: proto.UpgradeRecords, serve: (*conn).serveWait},
	"/v1/processes/output":  {method: "POST", inUse: true, upgrade: proto.UpgradeRecords, serve: (*conn).serveOutput},
	"/v1/processes/signal":  {method: "POST", inUse: true, serve: (*conn).serveSignal},
	"/v1/processes/remove":  {method: "POST", inUse: true, serve: (*conn).serveForget},
}

// route answers one request and reports whether the connection can carry another.
func (c *conn) route(req *request) bool {
	r, ok := routes[req.path]
	switch {
	case !ok:
		return c.fail(coded(proto.CodeNotFound, "no route %s %s", req.method, req.path))
	case req.method != r.method:
		return c.write(405, false, appendError(nil, proto.CodeInvalid, "use "+r.method))
	case req.version != "" && req.version != strconv.Itoa(proto.Version):
		return c.fail(coded(proto.CodeVersion, "the host speaks version %s of the agent protocol, this guest version %d", req.version, proto.Version))
	case req.upgrade != r.upgrade:
		return c.write(426, false, appendError(nil, proto.CodeInvalid, "ask for \"Upgrade: "+r.upgrade+"\""))
	}
	if r.inUse {
		c.s.noteUse()
	}
	return r.serve(c, req)
}

func (c *conn) serveStatus(*request) bool { return c.ok(appendStatus(nil, c.s.status())) }

func (s *Server) status() proto.Status {
	st := proto.Status{Version: proto.Version, Ready: true, Time: time.Now()}
	if s.o.Main != nil {
		st.Main = s.o.Main()
	}
	if s.o.Ready != nil {
		if err := s.o.Ready(); err != nil {
			st.Ready = false
			var wait notYet
			if !errors.As(err, &wait) {
				st.Error = err.Error()
			}
		}
	}
	return st
}

// serveIdentity makes this copy the machine the host wants it to be. The answer
// is a status, so that a host need not ask for readiness apart.
func (c *conn) serveIdentity(req *request) bool {
	id, err := decodeIdentity(req.body)
	if err != nil {
		return c.fail(coded(proto.CodeInvalid, "read identity: %w", err))
	}
	if err := c.identify(id); err != nil {
		return c.fail(err)
	}
	return c.serveStatus(req)
}

func (c *conn) identify(id proto.Identity) error {
	c.s.identity.Lock()
	defer c.s.identity.Unlock()
	if id.Fork {
		c.s.detachInherited(c)
	}
	if c.s.o.Identify == nil {
		return nil
	}
	if err := c.s.o.Identify(c.s.ctx, id); err != nil {
		return fmt.Errorf("apply identity: %w", err)
	}
	return nil
}

// serveSync answers when everything that was written so far is on the disks.
func (c *conn) serveSync(*request) bool {
	unix.Sync()
	return c.ok([]byte("{}"))
}

func (c *conn) serveShutdown(*request) bool {
	if c.s.o.Shutdown == nil {
		return c.fail(errors.New("this agent cannot power the machine off"))
	}
	if err := c.s.o.Shutdown(c.s.ctx); err != nil {
		return c.fail(fmt.Errorf("power off: %w", err))
	}
	return c.ok([]byte("{}"))
}
