package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// behind starts a server of a data directory that only its socket leads to, for
// SIETCH_TEST_SERVE: the tests' commands then go over it. It is ended by the
// returned function.
func behind(t *testing.T, r *repo) (end func()) {
	t.Helper()
	cmd := r.command(context.Background(), "serve", "--listen", "none")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}
	for deadline := time.Now().Add(within(30 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("unix", filepath.Join(r.dir, "serve.sock"))
		if err == nil {
			c.Close()
			return end
		}
		if time.Now().After(deadline) {
			end()
			t.Fatalf("the server does not listen: %v", err)
		}
	}
}

// endBehind ends what SIETCH_TEST_SERVE started.
var endBehind = func() {}

// TestShellOverServer lives a machine's life by a shell that talks to a running
// server, kills the server in the middle, and goes on without it.
func TestShellOverServer(t *testing.T) {
	together(t)
	r := private(t, filepath.Join(area, "overserver"))
	name := r.runSmall(t, "-e", "FROM_RUN=yes")
	alone := r.pace(t, name)

	s := r.serve(t)
	// What says how this command's own engine is to be makes it work beside.
	r.env = append(r.env, "SIETCH_VMM=", "SIETCH_BOOT_TIMEOUT=", "SIETCH_OVERCOMMIT=")
	over := r.pace(t, name)
	for i, what := range paced {
		t.Logf("sietch %-14s %6.1f ms alone, %6.1f ms over the server", strings.Join(what, " "), alone[i], over[i])
	}

	// Streams.
	res := r.tryInput(t, bytes.Repeat([]byte("0123456789abcdef"), 1<<18), "exec", "-i", name, "--", "sh", "-c", "wc -c; echo err >&2; exit 7")
	if strings.TrimSpace(res.stdout) != "4194304" || res.stderr != "err\n" || res.code != 7 {
		t.Errorf("streams: %s", res)
	}
	if got := r.ok(t, "exec", "-t", name, "--", "sh", "-c", "test -t 0 && echo terminal"); got != "terminal" {
		t.Errorf("exec -t says %q", got)
	}
	if res := r.try(t, "exec", name, "--", "/no/such"); res.code != 127 {
		t.Errorf("not found: %s", res)
	}
	r.fails(t, 3, []string{"nosuch", "hint"}, "exec", "nosuch", "--", "true")

	// Files both ways.
	dir := t.TempDir()
	content := bytes.Repeat([]byte("content\x00"), 1<<16)
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o640); err != nil {
		t.Fatal(err)
	}
	r.ok(t, "cp", dir, name+":/root/tree")
	r.ok(t, "cp", name+":/root/tree/file", filepath.Join(dir, "back"))
	if back, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(back, content) {
		t.Errorf("a file came back as %d bytes, %v", len(back), err)
	}

	// History.
	nonce := r.probe(t, name, "set", "one")
	first := r.commit(t, name, "one")
	if author := query[struct{ Author string }](t, r, "show", first.ID).Author; !strings.Contains(author, "@") {
		t.Errorf("author %q", author)
	}
	r.probe(t, name, "set", "two")
	forks := r.fork(t, 2, name)
	for _, f := range forks {
		if got := r.probe(t, f.Name, "get")[0]; got != "two" {
			t.Errorf("%s remembers %q", f.Name, got)
		}
	}
	r.ok(t, "checkout", name, first.ID)
	if got := r.probe(t, name, "get"); got[0] != "one" || got[1] != nonce[1] {
		t.Errorf("after checkout: %v, want %v", got, nonce)
	}
	if log := query[[]commitInfo](t, r, "log", name); len(log) == 0 || log[0].ID != first.ID {
		t.Errorf("log begins with %+v", log)
	}

	// What goes on by itself.
	id := r.ok(t, "exec", "-d", name, "--", "sh", "-c", "echo begun; sleep 1; echo ended; exit 4")
	if got := r.ok(t, "process", "logs", "-f", name, id); got != "begun\nended" {
		t.Errorf("process logs: %q", got)
	}
	if got := r.ok(t, "process", "wait", name, id); got != "4" {
		t.Errorf("process wait: %q", got)
	}
	if res := r.try(t, "exec", "-d", name, "--", "/no/such"); res.code != 127 {
		t.Errorf("a process that is not found: %s", res)
	}
	port := freePort(t)
	r.in(t, name, "mkdir -p /srv/www; echo served > /srv/www/index.html; httpd -p 8080 -h /srv/www")
	r.ok(t, "port", "add", name, fmt.Sprintf("127.0.0.1:%d:8080", port))
	if got := get(t, port); got != "served\n" {
		t.Errorf("through a port added later: %q", got)
	}
	r.ok(t, "stats", name)
	r.ok(t, "logs", name)
	if events := r.ok(t, "events"); !strings.Contains(events, "commit.create") {
		t.Errorf("events: %q", events)
	}
	r.interruptedFork(t, name)

	// The server is killed while it carries a command.
	cmd := r.command(t.Context(), "exec", name, "--", "sh", "-c", "echo ready; exec sleep 77")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v: %s", line, err, &stderr)
	}
	s.stop(t, syscall.SIGKILL)
	io.Copy(io.Discard, out)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "went away") || !strings.Contains(stderr.String(), "hint: ") {
		t.Errorf("exec when the server was killed: %v: %s", err, &stderr)
	}

	// Without it, with what it left: the same, silently.
	if res := r.try(t, "ps"); res.code != 0 || res.stderr != "" {
		t.Errorf("after the server: %s", res)
	}
	if got := r.in(t, name, "sleep 1; ps | grep -c '[s]leep 77'; true"); got != "0" {
		t.Errorf("the command of the killed server goes on: %s", got)
	}
	for _, route := range []string{"GET /v1/sandboxes/{name}/exec", "PUT /v1/sandboxes/{name}/files/tar", "POST /v1/forks", "POST /v1/sandboxes/{name}/commits", "GET /v1/sandboxes", "GET /v1/events"} {
		if !strings.Contains(s.log.String(), route) {
			t.Errorf("the server was not asked for %s", route)
		}
	}
	r.remove(t, name, forks[0].Name, forks[1].Name)
}

// interruptedFork ends a fork by a signal and wants its copies gone when the
// command is.
func (r *repo) interruptedFork(t *testing.T, name string) {
	t.Helper()
	before := len(r.all(t))
	cmd := r.command(t.Context(), "fork", "-n", "12", "--name", fresh("cut"), name)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatalf("no copy: %v: %s", err, &stderr)
	}
	cmd.Process.Signal(syscall.SIGINT)
	rest, _ := io.ReadAll(in)
	cmd.Wait()
	told := 1 + bytes.Count(rest, []byte("\n"))
	if code := cmd.ProcessState.ExitCode(); code != 130 && told != 12 {
		t.Errorf("fork: exit code %d after SIGINT: %s", code, &stderr)
	}
	var left []string
	for _, b := range r.all(t) {
		if strings.HasPrefix(b.Name, "cut") {
			left = append(left, b.Name)
		}
	}
	if len(r.all(t)) != before+len(left) || len(left) < told {
		t.Errorf("%d copies were told, %v are there", told, left)
	}
	r.remove(t, left...)
}

// paced are commands whose time says what an open server saves.
var paced = [][]string{{"exec", "NAME", "--", "true"}, {"ps"}, {"log"}}

// pace gives their medians in milliseconds.
func (r *repo) pace(t *testing.T, name string) []float64 {
	t.Helper()
	var medians []float64
	for _, what := range paced {
		args := slices.Clone(what)
		if i := slices.Index(args, "NAME"); i >= 0 {
			args[i] = name
		}
		var all []time.Duration
		for range 15 {
			res := r.try(t, args...)
			if res.code != 0 {
				t.Fatal(res)
			}
			all = append(all, res.took)
		}
		slices.Sort(all)
		medians = append(medians, all[len(all)/2].Seconds()*1000)
	}
	return medians
}
