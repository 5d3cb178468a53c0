package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// session is a sietch that runs in a terminal of its own.
type session struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File // the user's side
	tty      *os.File // sietch's side
	before   unix.Termios

	mu   sync.Mutex
	seen bytes.Buffer
	done chan struct{}
}

func startSession(t *testing.T, args ...string) *session {
	t.Helper()
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, terminal: terminal, tty: tty, done: make(chan struct{})}
	s.before = s.mode()
	// testscript has put a link of that name, which is this binary, on PATH.
	s.cmd = exec.Command("sietch", args...)
	s.cmd.Env = append(os.Environ(), "SIETCH_DATA_DIR="+t.TempDir(), "TERM=screen", "TZ=UTC")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		b := make([]byte, 4096)
		for {
			n, err := terminal.Read(b)
			s.mu.Lock()
			s.seen.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		tty.Close()
		<-s.done
		terminal.Close()
	})
	return s
}

func (s *session) mode() unix.Termios {
	s.t.Helper()
	mode, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *mode
}

// wait waits for a text to appear on the terminal.
func (s *session) wait(text string) {
	s.t.Helper()
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		if strings.Contains(s.output(), text) {
			return
		}
	}
	s.t.Fatalf("%q did not appear; the terminal shows:\n%s", text, s.output())
}

// waitRaw waits until the terminal no longer echoes.
func (s *session) waitRaw() {
	s.t.Helper()
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		if s.mode().Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) == 0 {
			return
		}
	}
	s.t.Fatal("the terminal did not become raw")
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

func (s *session) typeIn(text string) {
	s.t.Helper()
	if _, err := s.terminal.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for sietch and wants its exit code and the terminal as it was.
func (s *session) end(code int) {
	s.t.Helper()
	err := s.cmd.Wait()
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		s.t.Fatal(err)
	}
	if got != code {
		s.t.Errorf("exit code %d, want %d; the terminal shows:\n%s", got, code, s.output())
	}
	if after := s.mode(); after != s.before {
		s.t.Errorf("the terminal was left in another mode:\n%+v\n%+v", s.before, after)
	}
}

func TestExecTerminalIsRawAndRestored(t *testing.T) {
	s := startSession(t, "exec", "-it", "box", "line")
	s.waitRaw()
	s.typeIn("\x03") // Ctrl-C is the guest's
	s.wait(`read "\x03"`)
	s.end(5)
}

func TestExecTerminalSize(t *testing.T) {
	s := startSession(t, "exec", "-t", "box", "size")
	s.wait("24x80")
	if err := pty.Setsize(s.terminal, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	s.wait("50x132")
	s.end(0)
}

func TestExecTerminalRestoredWhenForcedToLeave(t *testing.T) {
	s := startSession(t, "exec", "-it", "box", "deaf")
	s.wait("ready")
	s.waitRaw()
	for range insistence {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // equal signals that arrive together are one
	}
	s.end(exitInterrupted)
}

func TestExecTerminalRestoredOnHangup(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("hang-ups are ignored here, as under nohup, and so they are in what is started")
	}
	s := startSession(t, "exec", "-it", "box", "deaf")
	s.wait("ready")
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.end(exitInterrupted)
}

func TestExecTerminalRestoredOnPanic(t *testing.T) {
	s := startSession(t, "exec", "-it", "box", "crash")
	s.wait("a bug in the engine")
	s.end(2)
}

func TestColoursOnATerminal(t *testing.T) {
	s := startSession(t, "log", "--oneline", "-n", "1")
	s.end(0)
	s.wait("another way")
	want := regexp.MustCompile("^\x1b\\[33me{8}0{4}\x1b\\[m \x1b\\[33m\\(\x1b\\[m\x1b\\[1;32mtry\x1b\\[m\x1b\\[33m\\)\x1b\\[m another way\r\n$")
	if !want.MatchString(s.output()) {
		t.Errorf("got %q", s.output())
	}
}

func TestNoColour(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	s := startSession(t, "log", "--oneline", "-n", "1")
	s.end(0)
	s.wait("another way")
	if strings.Contains(s.output(), "\x1b") {
		t.Errorf("got %q", s.output())
	}
}

func TestStreamsAreNotPutOnATerminal(t *testing.T) {
	for _, args := range [][]string{{"image", "export", "agent"}, {"cp", "box:/etc", "-"}, {"cp", "-", "box:/etc"}, {"image", "import", "-"}} {
		s := startSession(t, args...)
		s.end(exitUsage)
		s.wait("is a terminal")
	}
}
