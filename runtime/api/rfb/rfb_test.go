package rfb

import (
	"context"
	"encoding/binary"
	"errors"
	"image/color"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// server is the other end, by hand. Its methods end the test when the client
// does not do what is expected.
type server struct {
	net.Conn
	t *testing.T
}

func (s *server) say(parts ...any) {
	for _, p := range parts {
		if text, ok := p.(string); ok {
			p = []byte(text)
		}
		if b, ok := p.([]byte); ok && len(b) == 0 {
			continue // a pipe would wait for a reader
		}
		if err := binary.Write(s, binary.BigEndian, p); err != nil {
			return // the client has given up, which the test judges there
		}
	}
}

func (s *server) hear(n int) []byte {
	b := make([]byte, n)
	io.ReadFull(s, b)
	return b
}

// display is ServerInit.
func (s *server) display(width, height uint16, name string) {
	s.hear(1)
	s.say(width, height, make([]byte, 16), uint32(len(name)), name)
	s.hear(20 + 12)
}

func rect(x, y, w, h uint16, encoding int32) []byte {
	var b []byte
	for _, v := range []uint16{x, y, w, h} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return binary.BigEndian.AppendUint32(b, uint32(encoding))
}

func pixels(n int, r, g, b byte) []byte {
	var all []byte
	for range n {
		all = append(all, r, g, b, 0)
	}
	return all
}

// connectTo runs a server and connects to it.
func connectTo(t *testing.T, o Options, serve func(*server)) (*Client, error) {
	t.Helper()
	here, there := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer there.Close()
		serve(&server{there, t})
	}()
	t.Cleanup(func() { here.Close(); <-ended })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return Connect(ctx, here, o)
}

func TestHandshake(t *testing.T) {
	challenge := []byte("0123456789abcdef")
	tests := []struct {
		name, password string
		serve          func(*server)
		want           error // or, when text is set, any with it
		text           string
	}{
		{name: "3.8", serve: func(s *server) {
			s.say("RFB 003.008\n")
			if got := string(s.hear(12)); got != "RFB 003.008\n" {
				s.t.Errorf("the client answers %q", got)
			}
			s.say(byte(2), byte(16), byte(securityNone))
			s.hear(1)
			s.say(uint32(0))
			s.display(4, 3, "box")
		}},
		{name: "3.7", serve: func(s *server) {
			s.say("RFB 003.007\n")
			s.hear(12)
			s.say(byte(1), byte(securityNone))
			s.hear(1)
			s.display(4, 3, "box")
		}},
		{name: "3.3", serve: func(s *server) {
			s.say("RFB 003.003\n")
			s.hear(12)
			s.say(uint32(securityNone))
			s.display(4, 3, "box")
		}},
		{name: "later and in between", serve: func(s *server) {
			s.say("RFB 003.889\n")
			if got := string(s.hear(12)); got != "RFB 003.008\n" {
				s.t.Errorf("the client answers %q", got)
			}
			s.say(byte(1), byte(securityNone))
			s.hear(1)
			s.say(uint32(0))
			s.display(4, 3, "box")
		}},
		{name: "password", password: "secret", serve: func(s *server) {
			s.say("RFB 003.008\n")
			s.hear(12)
			s.say(byte(1), byte(securityVNC))
			s.hear(1)
			s.say(challenge)
			if got := s.hear(16); string(got) != string(response("secret", challenge)) {
				s.t.Error("the answer to the challenge is not the password's")
			}
			s.say(uint32(0))
			s.display(4, 3, "box")
		}},
		{name: "wrong password", password: "secret", want: ErrPassword, text: "try harder", serve: func(s *server) {
			s.say("RFB 003.008\n")
			s.hear(12)
			s.say(byte(1), byte(securityVNC))
			s.hear(1)
			s.say(challenge)
			s.hear(16)
			s.say(uint32(1), uint32(10), "try harder")
		}},
		{name: "no password", want: ErrPassword, serve: func(s *server) {
			s.say("RFB 003.003\n")
			s.hear(12)
			s.say(uint32(securityVNC))
		}},
		{name: "refused", text: "too many", serve: func(s *server) {
			s.say("RFB 003.008\n")
			s.hear(12)
			s.say(byte(0), uint32(8), "too many")
		}},
		{name: "unknown security", text: "[16 30]", serve: func(s *server) {
			s.say("RFB 003.008\n")
			s.hear(12)
			s.say(byte(2), byte(16), byte(30))
		}},
		{name: "something else", want: ErrNotRFB, serve: func(s *server) { s.say("HTTP/1.1 400 Bad Request\r\n") }},
		{name: "silence and end", want: ErrNotRFB, serve: func(s *server) {}},
		{name: "a reason of 4 GiB", text: "more than", serve: func(s *server) {
			s.say("RFB 003.008\n")
			s.hear(12)
			s.say(byte(0), uint32(1<<32-1))
		}},
		{name: "a display of 4 gigapixels", text: "65535 by 65535", serve: func(s *server) {
			s.say("RFB 003.003\n")
			s.hear(12)
			s.say(uint32(securityNone))
			s.hear(1)
			s.say(uint16(65535), uint16(65535), make([]byte, 16), uint32(0))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := connectTo(t, Options{Password: tt.password}, tt.serve)
			switch {
			case tt.want == nil && tt.text == "":
				if err != nil {
					t.Fatal(err)
				}
				if w, h := c.Size(); w != 4 || h != 3 || c.Name() != "box" {
					t.Errorf("display %q of %d by %d", c.Name(), w, h)
				}
			case tt.want != nil && !errors.Is(err, tt.want):
				t.Errorf("error %v, want %v", err, tt.want)
			case err == nil || !strings.Contains(err.Error(), tt.text):
				t.Errorf("error %v, want %q in it", err, tt.text)
			}
		})
	}
}

// TestResponse holds the first eight bytes of a password to be what counts.
func TestResponse(t *testing.T) {
	a, b := response("password", []byte("0123456789abcdef")), response("passwordlonger", []byte("0123456789abcdef"))
	if string(a) != string(b) {
		t.Error("more than eight bytes of a password count")
	}
	if string(a) == string(response("passwore", []byte("0123456789abcdef"))) {
		t.Error("the eighth byte of a password does not count")
	}
}

// TestCapture puts a picture together of whatever a server sends.
func TestCapture(t *testing.T) {
	c, err := connectTo(t, Options{}, func(s *server) {
		s.say("RFB 003.003\n")
		s.hear(12)
		s.say(uint32(securityNone))
		s.display(4, 3, "box")
		s.hear(10) // the request
		s.say(byte(messageBell))
		s.say(byte(messageCut), make([]byte, 3), uint32(5), "hello")
		s.say(byte(messageColors), byte(0), uint16(0), uint16(2), make([]byte, 12))
		// One update with the left half, one with the right, in two pieces.
		s.say(byte(messageUpdate), byte(0), uint16(1), rect(0, 0, 2, 3, encodingRaw), pixels(6, 1, 2, 3))
		s.say(byte(messageUpdate), byte(0), uint16(2), rect(2, 0, 2, 1, encodingRaw), pixels(2, 4, 5, 6), rect(2, 1, 2, 2, encodingRaw), pixels(4, 7, 8, 9))
		// The next time the display becomes smaller on the way.
		s.hear(10)
		s.say(byte(messageUpdate), byte(0), uint16(2), rect(0, 0, 1, 1, encodingRaw), pixels(1, 1, 1, 1), rect(0, 0, 2, 1, encodingSize))
		if again := s.hear(10); again[7] != 2 || again[9] != 1 {
			t.Errorf("after the change of size it asks %v", again)
		}
		s.say(byte(messageUpdate), byte(0), uint16(1), rect(0, 0, 2, 1, encodingRaw), pixels(2, 50, 60, 70))
		s.hear(1)
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[[2]int]color.RGBA{{0, 0}: {1, 2, 3, 255}, {1, 2}: {1, 2, 3, 255}, {3, 0}: {4, 5, 6, 255}, {2, 2}: {7, 8, 9, 255}} {
		if got := m.RGBAAt(at[0], at[1]); got != want {
			t.Errorf("pixel %v is %v, want %v", at, got, want)
		}
	}
	m, err = c.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.Rect.Dx() != 2 || m.Rect.Dy() != 1 || m.RGBAAt(1, 0) != (color.RGBA{50, 60, 70, 255}) {
		t.Errorf("after the change of size: %v, %v", m.Rect, m.RGBAAt(1, 0))
	}
}

// TestHostile gives up on what a server may not say.
func TestHostile(t *testing.T) {
	tests := []struct {
		name string
		say  []any
		text string
	}{
		{"outside", []any{byte(messageUpdate), byte(0), uint16(1), rect(3, 0, 2, 1, encodingRaw)}, "outside of the display"},
		{"far outside", []any{byte(messageUpdate), byte(0), uint16(1), rect(65535, 65535, 65535, 65535, encodingRaw)}, "outside of the display"},
		{"an encoding nobody asked for", []any{byte(messageUpdate), byte(0), uint16(1), rect(0, 0, 1, 1, 16)}, "not asked for"},
		{"an unknown message", []any{byte(99)}, "message 99"},
		{"grows beyond measure", []any{byte(messageUpdate), byte(0), uint16(1), rect(0, 0, 65535, 65535, encodingSize)}, "65535 by 65535"},
		{"ends", []any{byte(messageUpdate), byte(0), uint16(1), rect(0, 0, 4, 3, encodingRaw), pixels(3, 0, 0, 0)}, "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := connectTo(t, Options{}, func(s *server) {
				s.say("RFB 003.003\n")
				s.hear(12)
				s.say(uint32(securityNone))
				s.display(4, 3, "")
				s.hear(10)
				s.say(tt.say...)
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Capture(t.Context()); err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want %q in it", err, tt.text)
			}
		})
	}
}

func TestInput(t *testing.T) {
	got := make(chan []byte, 1)
	c, err := connectTo(t, Options{}, func(s *server) {
		s.say("RFB 003.003\n")
		s.hear(12)
		s.say(uint32(securityNone))
		s.display(300, 3, "")
		got <- s.hear(8 + 8 + 18)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Type("a", 0), c.Click(258, 2)); err != nil {
		t.Fatal(err)
	}
	want := []byte{4, 1, 0, 0, 0, 0, 0, 'a', 4, 0, 0, 0, 0, 0, 0, 'a', 5, 0, 1, 2, 0, 2, 5, 1, 1, 2, 0, 2, 5, 0, 1, 2, 0, 2}
	if b := <-got; string(b) != string(want) {
		t.Errorf("the server hears %v, want %v", b, want)
	}
	if c.Type("ä", 0) == nil || c.Point(300, 0, 0) == nil || c.Point(-1, 0, 0) == nil {
		t.Error("what cannot be typed or pointed at is sent")
	}
}

// TestContext wants a silent server to be given up when the context ends.
func TestContext(t *testing.T) {
	c, err := connectTo(t, Options{}, func(s *server) {
		s.say("RFB 003.003\n")
		s.hear(12)
		s.say(uint32(securityNone))
		s.display(4, 3, "")
		s.hear(11) // the request, and then the end
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Capture(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// TestQEMU photographs the display of a machine that stands still, by QEMU's own
// VNC server.
func TestQEMU(t *testing.T) {
	testlane.Need(t, testlane.QEMU)
	socket := filepath.Join(t.TempDir(), "vnc")
	cmd := exec.CommandContext(t.Context(), "qemu-system-x86_64", "-accel", "tcg", "-S", "-m", "16", "-nodefaults", "-vga", "std", "-vnc", "unix:"+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var conn net.Conn
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := Connect(ctx, conn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Capture(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if w, h := c.Size(); m.Rect.Dx() != w || m.Rect.Dy() != h || w < 320 {
		t.Errorf("a picture of %v of a display of %d by %d", m.Rect, w, h)
	}
}
