package agent

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// The requests that are first after a restore are decoded by hand; doc.go says
// why. Like encoding/json, the decoders ignore fields they do not know and take
// null for an empty value.

func decodeExec(b []byte) (proto.ExecRequest, error) {
	var r proto.ExecRequest
	err := decode(b, func(d *scanner) {
		d.object(func(key string) {
			switch key {
			case "args":
				r.Args = d.strings()
			case "env":
				r.Env = d.strings()
			case "working_dir":
				r.WorkingDir = d.str()
			case "user":
				r.User = d.str()
			case "stdin":
				r.Stdin = d.bool()
			case "tty":
				r.TTY = d.bool()
			case "rows":
				r.Rows = uint16(d.int(0, 1<<16-1))
			case "cols":
				r.Cols = uint16(d.int(0, 1<<16-1))
			case "timeout_ms":
				r.TimeoutMS = d.int(0, 1<<53)
			case "detach":
				r.Detach = d.bool()
			case "raw_args":
				r.RawArgs = d.blobs()
			case "raw_env":
				r.RawEnv = d.blobs()
			case "identity":
				if !d.null() {
					r.Identity = new(proto.Identity)
					d.identity(r.Identity)
				}
			default:
				d.skip()
			}
		})
	})
	return r, err
}

func decodeIdentity(b []byte) (proto.Identity, error) {
	var id proto.Identity
	err := decode(b, func(d *scanner) { d.identity(&id) })
	return id, err
}

func (d *scanner) identity(id *proto.Identity) {
	d.object(func(key string) {
		switch key {
		case "hostname":
			id.Hostname = d.str()
		case "machine_id":
			id.MachineID = d.str()
		case "boot_id":
			id.BootID = d.str()
		case "time":
			id.Time = d.time()
		case "entropy":
			id.Entropy = d.blob()
		case "fork":
			id.Fork = d.bool()
		default:
			d.skip()
		}
	})
}

func appendStatus(b []byte, s proto.Status) []byte {
	b = append(b, `{"version":`...)
	b = strconv.AppendInt(b, int64(s.Version), 10)
	b = append(b, `,"ready":`...)
	b = strconv.AppendBool(b, s.Ready)
	b = append(b, `,"main":{"running":`...)
	b = strconv.AppendBool(b, s.Main.Running)
	if s.Main.PID != 0 {
		b = append(b, `,"pid":`...)
		b = strconv.AppendInt(b, int64(s.Main.PID), 10)
	}
	b = append(b, `,"exit_code":`...)
	if s.Main.ExitCode == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, int64(*s.Main.ExitCode), 10)
	}
	b = append(b, `},"time":"`...)
	b = s.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	if s.Error != "" {
		b = appendString(append(b, `,"error":`...), s.Error)
	}
	return append(b, '}')
}

func appendExit(b []byte, x proto.ExitStatus) []byte {
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(x.Code), 10)
	if x.Signal != 0 {
		b = append(b, `,"signal":`...)
		b = strconv.AppendInt(b, int64(x.Signal), 10)
	}
	if x.Error != "" {
		b = appendString(append(b, `,"error":`...), x.Error)
	}
	return append(b, '}')
}

func appendError(b []byte, code, message string) []byte {
	b = appendString(append(b, `{"code":`...), code)
	b = appendString(append(b, `,"message":`...), message)
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s { // bytes that are not UTF-8 become U+FFFD
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// scanner reads one JSON document from front to back. The first thing wrong
// ends it: later calls return zero values.
type scanner struct {
	b     []byte
	i     int
	depth int
	err   error
}

const depthLimit = 32

func decode(b []byte, read func(*scanner)) error {
	d := &scanner{b: b}
	read(d)
	if d.peek(); d.err == nil && d.i < len(d.b) {
		d.fail("end")
	}
	return d.err
}

func (d *scanner) fail(want string) {
	if d.err == nil {
		d.err = fmt.Errorf("malformed JSON at byte %d: expected %s", d.i, want)
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (d *scanner) peek() byte {
	if d.err != nil {
		return 0
	}
	for ; d.i < len(d.b); d.i++ {
		switch c := d.b[d.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (d *scanner) take(c byte) bool {
	if d.peek() != c || d.err != nil {
		return false
	}
	d.i++
	return true
}

func (d *scanner) expect(c byte) {
	if !d.take(c) {
		d.fail(strconv.QuoteRune(rune(c)))
	}
}

func (d *scanner) word(w string) bool {
	d.peek()
	if d.err != nil || len(d.b)-d.i < len(w) || string(d.b[d.i:d.i+len(w)]) != w {
		return false
	}
	d.i += len(w)
	return true
}

func (d *scanner) null() bool { return d.word("null") }

// list reads what is between open and close, separated by commas.
func (d *scanner) list(open, close byte, element func()) {
	if d.null() {
		return
	}
	d.expect(open)
	if d.depth++; d.depth > depthLimit {
		d.fail("less nesting")
	}
	if !d.take(close) {
		for d.err == nil {
			element()
			if d.take(close) {
				break
			}
			d.expect(',')
		}
	}
	d.depth--
}

func (d *scanner) object(field func(key string)) {
	d.list('{', '}', func() {
		key := d.str()
		d.expect(':')
		if d.err == nil {
			field(key)
		}
	})
}

func (d *scanner) strings() (v []string) {
	d.list('[', ']', func() { v = append(v, d.str()) })
	return v
}

func (d *scanner) blobs() (v [][]byte) {
	d.list('[', ']', func() { v = append(v, d.blob()) })
	return v
}

func (d *scanner) bool() bool {
	switch {
	case d.word("true"):
		return true
	case !d.word("false") && !d.null():
		d.fail("true or false")
	}
	return false
}

func (d *scanner) int(low, high int64) int64 {
	if d.null() {
		return 0
	}
	n, err := strconv.ParseInt(string(d.number()), 10, 64)
	if d.err == nil && (err != nil || n < low || n > high) {
		d.fail(fmt.Sprintf("a whole number from %d to %d", low, high))
	}
	return n
}

func (d *scanner) number() []byte {
	d.peek()
	start := d.i
	for d.i < len(d.b) && (d.b[d.i] >= '0' && d.b[d.i] <= '9' || d.b[d.i] == '-' || d.b[d.i] == '+' || d.b[d.i] == '.' || d.b[d.i]|0x20 == 'e') {
		d.i++
	}
	if start == d.i {
		d.fail("a number")
	}
	return d.b[start:d.i]
}

func (d *scanner) blob() []byte {
	s := d.str()
	if s == "" {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		d.fail("base64")
	}
	return b
}

func (d *scanner) time() (t time.Time) {
	if s := d.str(); s != "" {
		var err error
		if t, err = time.Parse(time.RFC3339Nano, s); err != nil {
			d.fail("an RFC 3339 time")
		}
	}
	return t
}

// str reads a string. Bytes that are not UTF-8 are kept as they are.
func (d *scanner) str() string {
	if d.null() {
		return ""
	}
	d.expect('"')
	start := d.i
	for d.err == nil && d.i < len(d.b) {
		switch c := d.b[d.i]; {
		case c == '"':
			d.i++
			return string(d.b[start : d.i-1])
		case c == '\\':
			return d.escaped(append([]byte(nil), d.b[start:d.i]...))
		case c < ' ':
			d.fail("no control character in a string")
		default:
			d.i++
		}
	}
	d.fail("the end of a string")
	return ""
}

// escaped reads the rest of a string from its first escape on.
func (d *scanner) escaped(s []byte) string {
	for d.err == nil && d.i < len(d.b) {
		c := d.b[d.i]
		d.i++
		switch {
		case c == '"':
			return string(s)
		case c < ' ':
			d.fail("no control character in a string")
		case c != '\\':
			s = append(s, c)
		case d.i < len(d.b):
			r, err := d.escape()
			if err != nil {
				d.fail(err.Error())
			}
			s = utf8.AppendRune(s, r)
		}
	}
	d.fail("the end of a string")
	return ""
}

var errEscape = errors.New("a known escape")

func (d *scanner) escape() (rune, error) {
	c := d.b[d.i]
	d.i++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, err := d.hex4()
		if err != nil || !utf16.IsSurrogate(r) {
			return r, err
		}
		if d.i+1 < len(d.b) && d.b[d.i] == '\\' && d.b[d.i+1] == 'u' {
			back := d.i
			d.i += 2
			low, err := d.hex4()
			if err != nil {
				return 0, err
			}
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, nil
			}
			d.i = back // a lone surrogate, and an escape of its own after it
		}
		return utf8.RuneError, nil
	}
	return 0, errEscape
}

func (d *scanner) hex4() (rune, error) {
	if d.i+4 > len(d.b) {
		return 0, errEscape
	}
	v, err := strconv.ParseUint(string(d.b[d.i:d.i+4]), 16, 16)
	if err != nil {
		return 0, errEscape
	}
	d.i += 4
	return rune(v), nil
}

// skip reads any value and forgets it.
func (d *scanner) skip() {
	switch d.peek() {
	case '{':
		d.object(func(string) { d.skip() })
	case '[':
		d.list('[', ']', d.skip)
	case '"':
		d.str()
	case 't', 'f':
		d.bool()
	case 'n':
		if !d.null() {
			d.fail("a value")
		}
	default:
		d.number()
	}
}
