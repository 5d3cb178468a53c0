package acceptance

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// TestConnections is hazard 6: a commit breaks no connection, a checkout breaks
// those of the machine it replaces at once, and new ones work.
func TestConnections(t *testing.T) {
	r := shared(t)
	port := freePort(t)
	name := r.runSmall(t, "-p", fmt.Sprintf("127.0.0.1:%d:7007", port))
	defer r.remove(t, name)
	r.in(t, name, "nc -ll -p 7007 -e /bin/cat </dev/null >/dev/null 2>&1 &")
	dial := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		var conn net.Conn
		var err error
		for range 50 {
			if conn, err = net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		return conn, bufio.NewReader(conn)
	}
	echo := func(conn net.Conn, in *bufio.Reader, text string) error {
		conn.SetDeadline(time.Now().Add(within(5 * time.Second)))
		if _, err := fmt.Fprintln(conn, text); err != nil {
			return err
		}
		got, err := in.ReadString('\n')
		if err == nil && got != text+"\n" {
			err = fmt.Errorf("echoed %q, want %q", got, text)
		}
		return err
	}
	c := r.commit(t, name, "listening")

	conn, in := dial()
	defer conn.Close()
	if err := echo(conn, in, "before"); err != nil {
		t.Fatalf("through the forwarded port: %v", err)
	}
	r.commit(t, name, "connected")
	if err := echo(conn, in, "after a commit"); err != nil {
		t.Errorf("the connection did not outlive a commit: %v", err)
	}

	// An exec that is still running, too.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	long := r.command(ctx, "exec", name, "--", "sleep", "1000")
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- long.Wait() }()
	time.Sleep(within(500 * time.Millisecond))

	r.ok(t, "checkout", "--no-save", name, c.ID)
	back := time.Now()
	if err := echo(conn, in, "into the past"); err == nil {
		t.Error("a connection to the machine that was replaced still answers")
	}
	if took := time.Since(back); took > within(2*time.Second) {
		t.Errorf("a connection to the machine that was replaced hung for %s", took)
	}
	select {
	case err := <-ended:
		if code := exitCode(err); code == 0 {
			t.Error("an exec in the machine that was replaced ended with success")
		}
	case <-time.After(within(5 * time.Second)):
		t.Error("an exec in the machine that was replaced still hangs")
		cancel()
		<-ended
	}
	fresh, in := dial()
	defer fresh.Close()
	if err := echo(fresh, in, "anew"); err != nil {
		t.Errorf("a new connection after the checkout: %v", err)
	}

	for range 20 {
		r.ok(t, "pause", name)
		r.ok(t, "resume", name)
	}
	if err := echo(fresh, in, "after pauses"); err != nil {
		t.Errorf("a connection after 20 times pause and resume: %v", err)
	}
	if got := r.in(t, name, "echo alive"); got != "alive" {
		t.Errorf("exec after 20 times pause and resume: %q", got)
	}
}
