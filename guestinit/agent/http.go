package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

const (
	lineLimit   = 4 << 10
	headerLimit = 64       // lines
	bodyLimit   = 16 << 20 // the kernel takes 2 MiB of arguments, six bytes each at worst in JSON
)

// conn is one connection. Its goroutine reads all that comes in, HTTP requests
// and, during a stream, frames.
type conn struct {
	s  *Server
	nc net.Conn
	br *bufio.Reader

	inheritOnce sync.Once
	inherited   chan struct{} // closed when the connection turns out to be from before a restore
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{s: s, nc: nc, br: bufio.NewReaderSize(nc, lineLimit), inherited: make(chan struct{})}
}

func (c *conn) markInherited() { c.inheritOnce.Do(func() { close(c.inherited) }) }

func (c *conn) isInherited() bool {
	select {
	case <-c.inherited:
		return true
	default:
		return false
	}
}

// request is the part of an HTTP request that the agent looks at.
type request struct {
	method, path string
	upgrade      string
	version      string
	close        bool // no further request on this connection
	body         []byte
}

// httpError is an answer to a request that cannot be understood; the
// connection ends with it.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return e.message }

func malformed(format string, args ...any) error {
	return &httpError{400, fmt.Sprintf(format, args...)}
}

// serve answers requests until the peer goes or one of them ends the connection.
func (c *conn) serve() {
	defer c.nc.Close()
	for {
		req, err := c.readRequest()
		if err != nil {
			var bad *httpError
			if errors.As(err, &bad) {
				c.write(bad.status, true, appendError(nil, proto.CodeInvalid, bad.message))
			}
			return
		}
		if again := c.route(req); !again || req.close {
			return
		}
	}
}

// readRequest reads a request and its body. An error that is not an httpError
// means that the connection is gone.
func (c *conn) readRequest() (*request, error) {
	line, err := c.readLine()
	if err != nil {
		return nil, err
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, ok := bytes.Cut(rest, []byte(" "))
	if !ok || !bytes.HasPrefix(version, []byte("HTTP/1.")) {
		return nil, malformed("this is not an HTTP/1.1 request")
	}
	req := &request{method: string(method), path: string(target), close: string(version) == "HTTP/1.0"}

	length, expects := 0, false
	for lines := 0; ; lines++ {
		line, err := c.readLine()
		if err != nil {
			return nil, eofInside(err)
		}
		if len(line) == 0 {
			break
		}
		if lines == headerLimit {
			return nil, &httpError{431, "too many header lines"}
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return nil, malformed("malformed header line")
		}
		value = bytes.TrimSpace(value)
		switch {
		case is(name, "Content-Length"):
			length, err = strconv.Atoi(string(value))
			if err != nil || length < 0 {
				return nil, malformed("malformed Content-Length")
			}
		case is(name, "Transfer-Encoding"):
			return nil, &httpError{411, "the body needs a Content-Length"}
		case is(name, "Upgrade"):
			req.upgrade = string(value)
		case is(name, "Connection"):
			req.close = req.close || is(value, "close")
		case is(name, "Expect"):
			expects = is(value, "100-continue")
		case is(name, proto.VersionHeader):
			req.version = string(value)
		}
	}
	if length > bodyLimit {
		return nil, &httpError{413, fmt.Sprintf("the body is larger than %d bytes", bodyLimit)}
	}
	if length > 0 {
		if expects {
			if _, err := io.WriteString(c.nc, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return nil, err
			}
		}
		req.body = make([]byte, length)
		if _, err := io.ReadFull(c.br, req.body); err != nil {
			return nil, eofInside(err)
		}
	}
	return req, nil
}

// readLine returns the next line without its end, valid until the next read.
func (c *conn) readLine() ([]byte, error) {
	line, err := c.br.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		return nil, &httpError{431, "header line too long"}
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

func is(b []byte, s string) bool { return bytes.EqualFold(b, []byte(s)) }

func eofInside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

var statusText = map[int]string{
	200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict",
	411: "Length Required", 413: "Content Too Large", 426: "Upgrade Required",
	431: "Request Header Fields Too Large", 500: "Internal Server Error",
	503: "Service Unavailable", 507: "Insufficient Storage",
}

// write answers with a JSON body and reports whether the connection still works.
func (c *conn) write(status int, last bool, body []byte) bool {
	b := make([]byte, 0, 160+len(body))
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, statusText[status]...)
	b = appendVersion(b)
	if last {
		b = append(b, "\r\nConnection: close"...)
	}
	b = append(b, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	b = append(b, body...)
	_, err := c.nc.Write(b)
	return err == nil
}

// appendUpgrade is the head of a 101 answer.
func appendUpgrade(b []byte, token string) []byte {
	b = append(b, "HTTP/1.1 101 Switching Protocols"...)
	b = appendVersion(b)
	b = append(b, "\r\nConnection: Upgrade\r\nUpgrade: "...)
	b = append(b, token...)
	return append(b, "\r\n\r\n"...)
}

func appendVersion(b []byte) []byte {
	b = append(b, "\r\n"+proto.VersionHeader+": "...)
	b = strconv.AppendInt(b, proto.Version, 10)
	b = append(b, "\r\n"+proto.RevisionHeader+": "...)
	return strconv.AppendInt(b, proto.Revision, 10)
}
