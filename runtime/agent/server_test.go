package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/guestinit/reaper"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// serveVariable makes the test binary an agent of its own, which runs its
// children under the guest's reaper as PID 1 does.
const serveVariable = "SIETCH_TEST_SERVE_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		if err := serveAsProcess(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func serveAsProcess() error {
	os.Unsetenv(serveVariable)
	r, err := reaper.New()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := guest.New(guest.Options{
		Env: []string{"FROM_IMAGE=yes", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Start: func(cmd *exec.Cmd) (int, func() (unix.WaitStatus, error), error) {
			p, err := r.Start(cmd)
			if err != nil {
				return 0, nil, err
			}
			return p.PID, func() (unix.WaitStatus, error) { <-p.Done(); return p.Status(), nil }, nil
		},
	})
	fmt.Println(ln.Addr())
	go func() { // ends with its parent's pipe
		bufio.NewReader(os.Stdin).ReadByte()
		s.Close()
	}()
	return s.Serve(ln)
}

// remote is an agent in a process of its own.
type remote struct {
	*agent.Client
	addr string
	pid  int
}

// startProcess starts an agent process that ends with the test.
func startProcess(t testing.TB) *remote {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line)
	c := dialing(addr)
	t.Cleanup(func() {
		c.Close()
		in.Close()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("agent process: %v", err)
			}
		case <-time.After(20 * time.Second):
			cmd.Process.Signal(syscall.SIGQUIT)
			t.Errorf("agent process does not end: %v", <-done)
		}
	})
	return &remote{c, addr, cmd.Process.Pid}
}

func dialing(addr string) *agent.Client {
	return agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}})
}

// startHere starts an agent in this process, so that goroutines of both sides
// can be counted.
func startHere(t testing.TB, o guest.Options) (*agent.Client, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := guest.New(o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	c := dialing(ln.Addr().String())
	t.Cleanup(func() {
		c.Close()
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c, ln.Addr().String()
}

// noLeak fails the test when goroutines or descriptors are left at its end.
func noLeak(t testing.TB) {
	t.Helper()
	goroutines, files := goruntime.NumGoroutine(), openFiles(t, os.Getpid())
	t.Cleanup(func() {
		eventually(t, func() error {
			if n := goruntime.NumGoroutine(); n > goroutines {
				b := make([]byte, 1<<16)
				return fmt.Errorf("%d goroutines, %d before:\n%s", n, goroutines, b[:goruntime.Stack(b, true)])
			}
			if n := openFiles(t, os.Getpid()); n > files {
				return fmt.Errorf("%d open files, %d before", n, files)
			}
			return nil
		})
	})
}

func openFiles(t testing.TB, pid int) int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// eventually retries check for some seconds.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Error(err)
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run executes a command and returns its output and end.
func run(t testing.TB, c *agent.Client, req proto.ExecRequest, stdin string) (stdout, stderr string, st proto.ExitStatus) {
	t.Helper()
	var o, e bytes.Buffer
	sio := agent.IO{Stdout: &o, Stderr: &e}
	if req.Stdin || req.TTY {
		sio.Stdin = strings.NewReader(stdin)
	}
	st, err := c.Exec(testContext(t), req, sio)
	if err != nil {
		t.Fatalf("exec %q: %v", req.Args, err)
	}
	return o.String(), e.String(), st
}

func sh(script string) proto.ExecRequest {
	return proto.ExecRequest{Args: []string{"sh", "-c", script}}
}
