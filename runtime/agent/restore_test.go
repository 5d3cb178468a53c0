package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

func fork() proto.Identity {
	return proto.Identity{Hostname: "copy", MachineID: strings.Repeat("0f", 16), BootID: "b", Entropy: bytes.Repeat([]byte{7}, 64), Fork: true}
}

// TestForkDetaches: an identity for a copy lets go of the streams that were
// open, and their processes go on.
func TestForkDetaches(t *testing.T) {
	noLeak(t)
	var applied []proto.Identity
	c, addr := startHere(t, guest.Options{Identify: func(_ context.Context, id proto.Identity) error {
		applied = append(applied, id)
		return nil
	}})
	dir := t.TempDir()
	mark := func(name string) string { return filepath.Join(dir, name) }

	type open struct {
		name string
		req  proto.ExecRequest
	}
	streams := []open{
		// Output beyond what the connection holds must not block it.
		{"writer", sh("sleep 0.3; seq 1000000; echo done >" + mark("writer"))},
		// Its stdin ends.
		{"reader", proto.ExecRequest{Args: []string{"sh", "-c", "cat; echo done >" + mark("reader")}, Stdin: true}},
		// A terminal does not: an interactive shell would exit.
		{"terminal", proto.ExecRequest{Args: []string{"sh", "-c", "(sleep 0.5; echo done >" + mark("terminal") + ") & read x; echo ended >" + mark("ended")}, TTY: true}},
	}
	var clients sync.WaitGroup
	var pids [3]int
	var learned [3]time.Time
	for i, o := range streams {
		client := dialing(addr) // as of another host process
		defer client.Close()
		started := make(chan struct{})
		pr, pw := io.Pipe()
		defer pw.Close()
		clients.Go(func() {
			_, err := client.Exec(testContext(t), o.req, agent.IO{Stdin: pr, Started: func(pid int) { pids[i] = pid; close(started) }})
			if !errors.Is(err, agent.ErrUnreachable) {
				t.Errorf("%s: client got %v", o.name, err)
			}
			learned[i] = time.Now()
		})
		<-started
	}
	if _, err := c.Status(testContext(t)); err != nil { // an idle connection, which goes too
		t.Fatal(err)
	}
	before := time.Now()
	if err := c.Identify(testContext(t), fork()); err != nil {
		t.Fatal(err)
	}
	clients.Wait()
	for i, at := range learned {
		if d := at.Sub(before); d > 2*time.Second {
			t.Errorf("%s: client learned of it after %v", streams[i].name, d)
		}
	}

	if len(applied) != 1 || applied[0].Hostname != "copy" || !applied[0].Fork || len(applied[0].Entropy) != 64 {
		t.Errorf("applied %+v", applied)
	} else if d := applied[0].Time.Sub(before); d < -time.Second || d > time.Second {
		t.Errorf("time is %v off", d)
	}
	for _, o := range streams {
		eventually(t, func() error {
			if b, err := os.ReadFile(mark(o.name)); err != nil || string(b) != "done\n" {
				return fmt.Errorf("%s did not go on: %q, %v", o.name, b, err)
			}
			return nil
		})
	}
	if _, err := os.Stat(mark("ended")); err == nil || !isRunning(pids[2]) {
		t.Error("the terminal's input ended")
	}
	// The listener is as it was.
	if o, _, _ := run(t, c, sh("echo new"), ""); o != "new\n" {
		t.Errorf("got %q", o)
	}
	syscall.Kill(-pids[2], syscall.SIGKILL)
}

// TestResetBeforeFork is the order in which it happens: the restored guest
// sends, is answered with a reset, and only then gets its identity.
func TestResetBeforeFork(t *testing.T) {
	tests := []struct {
		name  string
		after func(*testing.T, *agent.Client)
		lives bool
	}{
		{"identity follows", func(t *testing.T, c *agent.Client) {
			if err := c.Identify(testContext(t), fork()); err != nil {
				t.Fatal(err)
			}
			run(t, c, sh("true"), "")
		}, true},
		{"asked for its status, then the identity", func(t *testing.T, c *agent.Client) {
			if _, err := c.Status(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if err := c.Identify(testContext(t), fork()); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"machine in use", func(t *testing.T, c *agent.Client) { run(t, c, sh("true"), "") }, false},
		{"identity with the first exec", func(t *testing.T, c *agent.Client) {
			req, id := sh("true"), fork()
			req.Identity = &id
			run(t, c, req, "")
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeak(t)
			var nc net.Conn
			c, addr := startHere(t, guest.Options{})
			old := agent.New(agent.Options{Dial: func(ctx context.Context) (_ net.Conn, err error) {
				nc, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
				return nc, err
			}})
			defer old.Close()
			pid, _, end := startLong(t, old, sh("while :; do echo tick; sleep 0.01; done"))
			nc.(*net.TCPConn).SetLinger(0)
			nc.Close()
			<-end
			time.Sleep(100 * time.Millisecond)
			if !isRunning(pid) {
				t.Fatal("a reset killed at once")
			}
			tt.after(t, c)
			if tt.lives {
				time.Sleep(1500 * time.Millisecond) // longer than a kill takes
				if !isRunning(pid) {
					t.Error("process was killed")
				}
				syscall.Kill(-pid, syscall.SIGKILL)
				return
			}
			eventually(t, func() error {
				if isRunning(pid) {
					return errors.New("process is left")
				}
				return nil
			})
		})
	}
}

func TestIdentityFails(t *testing.T) {
	c, _ := startHere(t, guest.Options{Identify: func(context.Context, proto.Identity) error {
		return errors.New("credit entropy: operation not permitted")
	}})
	var remote *agent.RemoteError
	if err := c.Identify(testContext(t), fork()); !errors.As(err, &remote) || remote.Message != "apply identity: credit entropy: operation not permitted" {
		t.Errorf("got %v", err)
	}
	req, id := sh("true"), fork()
	req.Identity = &id
	if _, err := c.Exec(testContext(t), req, agent.IO{}); !errors.As(err, &remote) {
		t.Errorf("exec with identity: got %v", err)
	}
}

// TestWaitReady starts the guest after the waiting.
func TestWaitReady(t *testing.T) {
	noLeak(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()

	type answer struct {
		st  proto.Status
		err error
		at  time.Time
	}
	wait := func(ctx context.Context, c *agent.Client) <-chan answer {
		ch := make(chan answer, 1)
		go func() {
			st, err := c.WaitReady(ctx, 0)
			ch <- answer{st, err, time.Now()}
		}()
		return ch
	}
	c := dialing(addr)
	defer c.Close()
	got := wait(testContext(t), c)
	time.Sleep(200 * time.Millisecond)

	var mu sync.Mutex
	reason := guest.NotYet("still mounting")
	seven := 7
	s := guest.New(guest.Options{
		Ready: func() error { mu.Lock(); defer mu.Unlock(); return reason },
		Main:  func() proto.MainStatus { return proto.MainStatus{PID: 12, ExitCode: &seven} },
	})
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	defer func() { s.Close(); <-served }()

	time.Sleep(100 * time.Millisecond)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if a := <-wait(short, c); !errors.Is(a.err, agent.ErrNotReady) || !errors.Is(a.err, context.DeadlineExceeded) {
		t.Errorf("while it boots: got %v", a.err)
	}
	select {
	case a := <-got:
		t.Fatalf("returned early: %+v", a)
	default:
	}
	mu.Lock()
	reason = nil
	mu.Unlock()
	set := time.Now()
	a := <-got
	if a.err != nil || !a.st.Ready || a.st.Version != proto.Version || a.st.Main.PID != 12 || a.st.Main.ExitCode == nil || *a.st.Main.ExitCode != 7 {
		t.Errorf("got %+v", a)
	}
	if d := a.at.Sub(set); d > time.Second {
		t.Errorf("noticed after %v", d)
	}

	mu.Lock()
	reason = errors.New("mount layer: no such device")
	mu.Unlock()
	var remote *agent.RemoteError
	if a := <-wait(testContext(t), c); !errors.As(a.err, &remote) || remote.Message != "mount layer: no such device" {
		t.Errorf("a guest that never will be ready: got %v", a.err)
	}
}

func TestUnreachable(t *testing.T) {
	noLeak(t)
	c := dialing("127.0.0.1:1")
	defer c.Close()
	if _, err := c.Status(testContext(t)); !errors.Is(err, agent.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := c.WaitReady(ctx, 0)
	if !errors.Is(err, agent.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
}

// TestSilentPeer: a guest that swallows packets, and one that is slow, are not
// waited for one attempt at a time, nor given up too soon.
func TestSilentPeer(t *testing.T) {
	ask := map[string]func(context.Context, *agent.Client) error{
		"WaitReady": func(ctx context.Context, c *agent.Client) error { _, err := c.WaitReady(ctx, 0); return err },
		"Identify":  func(ctx context.Context, c *agent.Client) error { return c.Identify(ctx, fork()) },
	}
	for name, ask := range ask {
		t.Run(name+", lost", func(t *testing.T) {
			noLeak(t)
			_, addr := startHere(t, guest.Options{})
			begin := time.Now()
			c := agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) {
				if time.Since(begin) < 150*time.Millisecond {
					<-ctx.Done() // the SYN was lost
					return nil, ctx.Err()
				}
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			}})
			defer c.Close()
			must(t, ask(testContext(t), c))
			if d := time.Since(begin); d > 3*time.Second {
				t.Errorf("took %v", d)
			}
		})
		t.Run(name+", slow", func(t *testing.T) {
			noLeak(t)
			_, addr := startHere(t, guest.Options{})
			begin := time.Now()
			c := agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) {
				select {
				case <-time.After(time.Second): // the handshake takes that long
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			}})
			defer c.Close()
			must(t, ask(testContext(t), c))
			if d := time.Since(begin); d > 5*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestPeersRefused(t *testing.T) {
	noLeak(t)
	asked := make(chan netip.Addr, 1)
	c, addr := startHere(t, guest.Options{Allow: func(a netip.Addr) bool {
		asked <- a
		return a == netip.MustParseAddr("127.0.0.2")
	}})
	if _, err := c.Status(testContext(t)); !errors.Is(err, agent.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	if a := <-asked; a != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("asked for %v", a)
	}
	if nc, err := net.Dial("tcp", addr); err == nil { // the reset may be quicker
		nc.SetDeadline(time.Now().Add(5 * time.Second))
		if b, err := io.ReadAll(nc); len(b) > 0 || err == nil {
			t.Errorf("a refused peer got %q, %v", b, err)
		}
		nc.Close()
	}
	<-asked
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	good := agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }})
	defer good.Close()
	if _, err := good.Status(testContext(t)); err != nil {
		t.Errorf("the gateway was refused: %v", err)
	}
	<-asked
}

// TestOtherVersion has something else answer on the port.
func TestOtherVersion(t *testing.T) {
	tests := []struct{ name, answer, want string }{
		{"newer agent", "HTTP/1.1 200 OK\r\nSietch-Version: 2\r\nContent-Length: 2\r\n\r\n{}", "version: 2, this sietch speaks 1"},
		{"a web server", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not an agent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeak(t)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var conns sync.WaitGroup
			conns.Go(func() {
				for {
					nc, err := ln.Accept()
					if err != nil {
						return
					}
					conns.Go(func() {
						defer nc.Close()
						bufio.NewReader(nc).ReadString('\n')
						io.WriteString(nc, tt.answer)
					})
				}
			})
			defer conns.Wait()
			defer ln.Close()
			c := dialing(ln.Addr().String())
			defer c.Close()
			_, err = c.Status(testContext(t))
			_, waitErr := c.WaitReady(testContext(t), 0)
			for _, err := range []error{err, waitErr} {
				if !errors.Is(err, agent.ErrVersion) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// TestStaleIdle: connections that the guest has dropped are not used.
func TestStaleIdle(t *testing.T) {
	noLeak(t)
	c, addr := startHere(t, guest.Options{})
	run(t, c, sh("true"), "")
	other := dialing(addr)
	defer other.Close()
	for range 20 {
		if err := other.Identify(testContext(t), fork()); err != nil { // drops c's
			t.Fatal(err)
		}
		run(t, c, sh("true"), "")
	}
}

func TestReuse(t *testing.T) {
	noLeak(t)
	_, addr := startHere(t, guest.Options{})
	dialed := 0
	c := agent.New(agent.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		dialed++
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}})
	defer c.Close()
	for range 10 {
		if err := c.Identify(testContext(t), proto.Identity{Hostname: "x"}); err != nil {
			t.Fatal(err)
		}
		if o, _, _ := run(t, c, proto.ExecRequest{Args: []string{"head", "-c3"}, Stdin: true}, strings.Repeat("x", 100000)); o != "xxx" {
			t.Fatalf("got %q", o)
		}
		run(t, c, proto.ExecRequest{Args: []string{"no-such-thing"}, Stdin: true}, "unread")
		if _, err := c.Exec(testContext(t), proto.ExecRequest{Args: []string{"true"}, User: "nobody-at-all"}, agent.IO{}); err == nil {
			t.Fatal("no error")
		}
		var tar bytes.Buffer
		if err := c.Get(testContext(t), agent.GetRequest{Path: "/etc/passwd"}, &tar); err != nil {
			t.Fatal(err)
		}
		if err := c.Put(testContext(t), agent.PutRequest{Path: "/no/such"}, &tar); err == nil {
			t.Fatal("no error")
		}
	}
	if dialed > 2 { // aggressive dialing may open a second
		t.Errorf("dialed %d times", dialed)
	}
}

func TestShutdown(t *testing.T) {
	called := false
	c, _ := startHere(t, guest.Options{Shutdown: func(context.Context) error { called = true; return nil }})
	if err := c.Shutdown(testContext(t)); err != nil || !called {
		t.Errorf("got %v, called %v", err, called)
	}
	c, _ = startHere(t, guest.Options{})
	if err := c.Shutdown(testContext(t)); err == nil {
		t.Error("no error from an agent that cannot")
	}
}
