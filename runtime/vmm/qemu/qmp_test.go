package qemu

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveQMP answers on a socket with what script maps a received line's command
// to; a missing answer is silence.
func serveQMP(t *testing.T, greeting string, script map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qmp")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, greeting)
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				for command, answer := range script {
					if strings.Contains(lines.Text(), `"`+command+`"`) {
						io.WriteString(conn, answer)
					}
				}
			}
			conn.Close()
		}
	}()
	return path
}

const hello = `{"QMP": {"version": {}, "capabilities": []}}` + "\r\n"

func TestQMP(t *testing.T) {
	path := serveQMP(t, hello, map[string]string{
		"qmp_capabilities": `{"return": {}}` + "\n",
		"query-status":     `{"timestamp": {}, "event": "STOP"}` + "\n" + `{"return": {"running": false, "status": "paused"}}` + "\n",
		"stop":             `{"error": {"class": "GenericError", "desc": "not now"}}` + "\n",
	})
	q, err := dialQMP(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	s, err := q.status(t.Context())
	if err != nil || s.Running || s.Status != "paused" {
		t.Errorf("got %+v, %v", s, err)
	}
	var qe *qmpError
	if err := q.run(t.Context(), "stop", nil, nil, nil); !errors.As(err, &qe) || err.Error() != "stop: not now" {
		t.Errorf("an error answer: got %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := q.run(short, "silence", nil, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: got %v", err)
	}
}

func TestDialQMPFails(t *testing.T) {
	busy := serveQMP(t, "", nil)
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	for what, c := range map[string]struct {
		ctx  context.Context
		path string
	}{
		"no socket":    {t.Context(), filepath.Join(t.TempDir(), "none")},
		"not QMP":      {t.Context(), serveQMP(t, `{"hello": 1}`+"\n", nil)},
		"not JSON":     {t.Context(), serveQMP(t, "SSH-2.0\n", nil)},
		"serves other": {short, busy},
	} {
		if q, err := dialQMP(c.ctx, c.path); err == nil {
			q.Close()
			t.Errorf("%s: connected", what)
		}
	}
	if _, err := dialQMP(short, busy); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another is served: got %v, want the context's error", err)
	}
}
