package sdk

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/sdk/go/sietch"
)

// TestGo drives real machines with the client for Go, by both ways to the server.
func TestGo(t *testing.T) {
	s := theServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := sietch.New(sietch.Options{URL: s.url, Token: s.token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm", MemoryBytes: 256 << 20, DiskBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Remove(context.WithoutCancel(ctx), true); err != nil {
			t.Error(err)
		}
	}()

	if res, err := box.Exec(ctx, "sh", "-c", "echo out; echo err >&2; exit 3"); err != nil || res.ExitCode != 3 || res.Stdout != "out\n" || res.Stderr != "err\n" {
		t.Errorf("got %+v, %v", res, err)
	}

	// A stream, by the unix socket, that needs no token.
	local, err := sietch.New(sietch.Options{URL: "unix://" + s.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	x, err := local.Sandbox(box.Name).ExecStream(ctx, sietch.ExecStart{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	wrote := make(chan error, 1)
	go func() {
		_, err := x.Write(data)
		wrote <- errors.Join(err, x.CloseStdin())
	}()
	var out bytes.Buffer
	if exit, err := x.Copy(&out, nil); err != nil || exit.Code != 0 || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d of %d bytes came back, %+v, %v", out.Len(), len(data), exit, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}

	// Back in place, then copies, each as it is ready.
	read := func(b *sietch.Sandbox) string {
		t.Helper()
		data, err := b.ReadFile(ctx, "/root/state")
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write := func(text string) {
		t.Helper()
		if err := box.WriteFile(ctx, "/root/state", strings.NewReader(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	one, err := box.Commit(ctx, "one")
	if err != nil || one.Timing.PauseMs <= 0 {
		t.Fatalf("commit: %+v, %v", one, err)
	}
	write("two")
	if _, err := box.Checkout(ctx, one.Id); err != nil {
		t.Fatal(err)
	}
	if got := read(box); got != "one" {
		t.Errorf("after checkout the file says %q", got)
	}
	copies := 0
	for copy, err := range box.ForkEach(ctx, sietch.ForkRequest{N: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		copies++
		if got := read(copy); got != "one" || copy.ReadyMs <= 0 {
			t.Errorf("%s, ready after %g ms, says %q", copy.Name, copy.ReadyMs, got)
		}
		if err := copy.Remove(ctx, true); err != nil {
			t.Error(err)
		}
	}
	if copies != 2 {
		t.Errorf("got %d copies, want 2", copies)
	}

	forks := 0
	events, err := c.PastEvents(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "sandbox.fork" {
			forks++
		}
	}
	if forks < 2 {
		t.Errorf("the events tell of %d forks", forks)
	}
	if _, err := box.Checkout(ctx, "no-such"); !errors.Is(err, sietch.NotFound) {
		t.Errorf("got %v", err)
	}
	anybody, err := sietch.New(sietch.Options{URL: s.url, Token: "wrong"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anybody.List(ctx, false); !errors.Is(err, sietch.Unauthorized) {
		t.Errorf("with a wrong token: %v", err)
	}
}
