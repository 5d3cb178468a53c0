package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

func TestGrandchildren(t *testing.T) {
	p := startProcess(t)
	t.Run("that hold stdout do not keep the exec", func(t *testing.T) {
		start := time.Now()
		o, _, st := run(t, p.Client, sh("echo first; sleep 60 & echo $!"), "")
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("took %v", d)
		}
		f := strings.Fields(o)
		if st.Code != 0 || len(f) != 2 || f[0] != "first" {
			t.Fatalf("got %q, %+v", o, st)
		}
		pid, _ := strconv.Atoi(f[1])
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("the grandchild did not survive: %v", err)
		}
		syscall.Kill(pid, syscall.SIGKILL)
	})
	t.Run("may go on writing", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "mark")
		run(t, p.Client, sh("(sleep 0.4; for i in 1 2 3; do seq 20000; done; echo done > "+mark+") & true"), "")
		eventually(t, func() error { _, err := os.Stat(mark); return err })
	})
	t.Run("are heard for a moment", func(t *testing.T) {
		eventually(t, func() error { // a busy host may make it late
			if o, _, _ := run(t, p.Client, sh("(sleep 0.02; echo late) & echo early"), ""); o != "early\nlate\n" {
				return fmt.Errorf("got %q", o)
			}
			return nil
		})
	})
	t.Run("do not cut off a slow reader", func(t *testing.T) {
		// The pipe is full when the process ends, its reader sleeps longer than
		// the grace, and someone keeps the pipe open.
		first := true
		var out bytes.Buffer
		slow := writerFunc(func(b []byte) (int, error) {
			if first {
				first = false
				time.Sleep(700 * time.Millisecond)
			}
			return out.Write(b)
		})
		st, err := p.Exec(testContext(t), sh("sleep 60 & head -c 200000 /dev/zero | tr '\\0' x; kill_me=$!; echo END $kill_me"), agent.IO{Stdout: slow})
		if err != nil {
			t.Fatal(err)
		}
		text, pid, _ := strings.Cut(out.String(), "END ")
		if len(text) != 200000 || st.Code != 0 {
			t.Errorf("got %d bytes, %+v", len(text), st)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(pid))
		syscall.Kill(n, syscall.SIGKILL)
	})
	eventually(t, func() error {
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("children are left: %v", kids)
		}
		return nil
	})
}

func TestTimeoutKillsAll(t *testing.T) {
	p := startProcess(t)
	dir := t.TempDir()
	start := time.Now()
	req := sh(`trap '' TERM; (trap '' TERM; echo $$ >` + dir + `/parent; sleep 61) & sleep 60; sleep 60`)
	req.TimeoutMS = 100
	_, _, st := run(t, p.Client, req, "")
	if st.Code != 124 || st.Signal != 9 {
		t.Errorf("got %+v", st)
	}
	if d := time.Since(start); d < time.Second || d > 20*time.Second {
		t.Errorf("took %v, want the limit and a second of grace", d)
	}
	eventually(t, func() error {
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("children are left: %v", kids)
		}
		return nil
	})
}

// startLong starts a process that notes its pid and returns it once it runs.
func startLong(t *testing.T, c *agent.Client, req proto.ExecRequest) (pid int, leave context.CancelFunc, end <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	started, done := make(chan int, 1), make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, req, agent.IO{Started: func(pid int) { started <- pid }})
		done <- err
	}()
	select {
	case pid := <-started:
		return pid, cancel, done
	case err := <-done:
		t.Fatalf("exec ended: %v", err)
	}
	panic("unreachable")
}

func isRunning(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestClientLoss(t *testing.T) {
	t.Run("kills the session", func(t *testing.T) {
		p := startProcess(t)
		for _, tty := range []bool{false, true} {
			// Job control puts the job into a group of its own; HUP is ignored.
			req := sh("trap '' HUP; set -m; sleep 60 & sleep 61; sleep 62")
			req.TTY = tty
			pid, leave, end := startLong(t, p.Client, req)
			eventually(t, func() error {
				if n := sessionSize(t, pid); n < 3 {
					return fmt.Errorf("%d processes in session", n)
				}
				return nil
			})
			leave()
			if err := <-end; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			eventually(t, func() error {
				if n := sessionSize(t, pid); n > 0 {
					return fmt.Errorf("tty %v: %d processes are left", tty, n)
				}
				return nil
			})
		}
	})
	t.Run("with output under way", func(t *testing.T) {
		p := startProcess(t)
		ctx, cancel := context.WithCancel(testContext(t))
		pid := 0
		_, err := p.Exec(ctx, sh("cat /dev/zero"), agent.IO{
			Started: func(p int) { pid = p },
			Stdout:  writerFunc(func(b []byte) (int, error) { cancel(); time.Sleep(50 * time.Millisecond); return len(b), nil }),
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error {
			if sessionSize(t, pid) > 0 {
				return errors.New("process is left")
			}
			return nil
		})
	})
	t.Run("detached goes on", func(t *testing.T) {
		p := startProcess(t)
		mark := filepath.Join(t.TempDir(), "mark")
		req := sh("cat; seq 100000; echo gone on > " + mark)
		req.Detach, req.Stdin = true, true
		pr, pw := io.Pipe()
		ctx, cancel := context.WithCancel(testContext(t))
		_, err := p.Exec(ctx, req, agent.IO{Stdin: pr, Started: func(int) { cancel() }})
		pw.Close()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error { _, err := os.Stat(mark); return err })
	})
	t.Run("output that cannot be written", func(t *testing.T) {
		p := startProcess(t)
		pid := 0
		_, err := p.Exec(testContext(t), sh("yes"), agent.IO{
			Started: func(p int) { pid = p },
			Stdout:  writerFunc(func([]byte) (int, error) { return 0, syscall.EPIPE }),
		})
		if !errors.Is(err, syscall.EPIPE) || errors.Is(err, agent.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error {
			if sessionSize(t, pid) > 0 {
				return errors.New("process is left")
			}
			return nil
		})
	})
}

// sessionSize counts the living processes of a session.
func sessionSize(t *testing.T, sid int) (n int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		s := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if s[0] != "Z" && s[3] == strconv.Itoa(sid) {
			n++
		}
	}
	return n
}

func TestClosedClient(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	_, _, end := startLong(t, c, sh("sleep 60"))
	c.Close()
	if err := <-end; !errors.Is(err, agent.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Status(testContext(t)); !errors.Is(err, agent.ErrClosed) {
		t.Errorf("got %v", err)
	}
	c.Close()
}
