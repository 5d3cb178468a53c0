package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

func shell(script string) proto.ExecRequest {
	return proto.ExecRequest{Args: []string{"sh", "-c", script}}
}

func (r *remote) start(t *testing.T, q proto.ExecRequest) proto.Process {
	t.Helper()
	p, err := r.Start(t.Context(), q)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return p
}

func (r *remote) output(t *testing.T, q proto.OutputRequest) (string, int64) {
	t.Helper()
	var b bytes.Buffer
	at, err := r.Output(t.Context(), q, &b, nil)
	if err != nil {
		t.Fatalf("output: %v", err)
	}
	return b.String(), at
}

// TestBackground is the life of a process that nobody is connected to.
func TestBackground(t *testing.T) {
	r := startProcess(t)
	p := r.start(t, shell("echo out; echo err >&2; echo out2; read x; echo read $?; exit 7"))
	if p.ID == "" || p.PID <= 0 || !p.Running || p.Exit != nil {
		t.Errorf("a process that was just started: %+v", p)
	}
	end, err := r.Wait(t.Context(), p.ID)
	if err != nil || end.Running || end.Ended == nil || end.Exit == nil || end.Exit.Code != 7 {
		t.Fatalf("its end: %+v, %v", end, err)
	}
	const want = "out\nerr\nout2\nread 1\n"
	if got, at := r.output(t, proto.OutputRequest{ID: p.ID}); got != want || at != int64(len(want)) || end.OutputBytes != at {
		t.Errorf("output: got %q to %d, of %d", got, at, end.OutputBytes)
	}
	for _, tt := range []struct {
		off, limit int64
		want       string
		at         int64
	}{{4, 3, "err", 7}, {4, 0, want[4:], int64(len(want))}, {int64(len(want)), 0, "", int64(len(want))}, {1000, 5, "", int64(len(want))}} {
		if got, at := r.output(t, proto.OutputRequest{ID: p.ID, Offset: tt.off, Limit: tt.limit}); got != tt.want || at != tt.at {
			t.Errorf("from %d, %d bytes: got %q to %d, want %q to %d", tt.off, tt.limit, got, at, tt.want, tt.at)
		}
	}
	if again, err := r.Wait(t.Context(), p.ID); err != nil || again.Exit.Code != 7 {
		t.Errorf("a second wait: %+v, %v", again, err)
	}
	if err := r.Signal(t.Context(), p.ID, syscall.SIGKILL); err != nil {
		t.Errorf("signal to one that has ended: %v", err)
	}
	if err := r.Forget(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
	var remote *agent.RemoteError
	if _, err := r.Process(t.Context(), p.ID); !errors.As(err, &remote) || remote.Code != proto.CodeNotFound {
		t.Errorf("after it was removed: %v", err)
	}
}

// TestBackgroundSignal also wants the group and the order of the list.
func TestBackgroundSignal(t *testing.T) {
	r := startProcess(t)
	first := r.start(t, shell("sleep 600 & wait"))
	second := r.start(t, proto.ExecRequest{Args: []string{"sleep", "600"}, TimeoutMS: 100})
	list, err := r.Processes(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != first.ID || list[1].ID != second.ID {
		t.Fatalf("list: %+v, %v", list, err)
	}
	var remote *agent.RemoteError
	if err := r.Forget(t.Context(), first.ID); !errors.As(err, &remote) || remote.Code != proto.CodeInvalid {
		t.Errorf("remove of a running process: %v", err)
	}
	if p, err := r.Wait(t.Context(), second.ID); err != nil || p.Exit.Code != 124 {
		t.Errorf("timeout: %+v, %v", p.Exit, err)
	}
	if err := r.Signal(t.Context(), first.ID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if p, err := r.Wait(t.Context(), first.ID); err != nil || p.Exit.Signal != 15 || p.Exit.Code != 143 {
		t.Errorf("signal: %+v, %v", p.Exit, err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Kill(-first.PID, 0); err != nil {
			break
		} else if time.Now().After(deadline) {
			t.Error("the group was not signalled")
			break
		}
	}
}

// TestBackgroundRefused is about commands that cannot be run.
func TestBackgroundRefused(t *testing.T) {
	r := startProcess(t)
	for name, code := range map[string]int{"no-such-command": 127, "/etc/passwd": 126} {
		var cannot *agent.StartError
		if _, err := r.Start(t.Context(), proto.ExecRequest{Args: []string{name}}); !errors.As(err, &cannot) || cannot.Code != code || cannot.Error() == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := r.Start(t.Context(), proto.ExecRequest{Args: []string{"true"}, User: "nosuch"}); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("unknown user: got %v", err)
	}
	if list, err := r.Processes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("what never ran is listed: %+v, %v", list, err)
	}
}

// TestBackgroundFollow reads along until the end, and past it nothing.
func TestBackgroundFollow(t *testing.T) {
	r := startProcess(t)
	p := r.start(t, shell("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; sleep 600 &"))
	if got, _ := r.output(t, proto.OutputRequest{ID: p.ID, Follow: true}); got != "1\n2\n3\n4\n5\n" {
		t.Errorf("got %q", got)
	}
	// A follower that leaves disturbs nobody.
	q := r.start(t, proto.ExecRequest{Args: []string{"yes"}})
	ctx, cancel := context.WithCancel(t.Context())
	var seen counter
	seen.after, seen.then = 1<<20, cancel
	if _, err := r.Output(ctx, proto.OutputRequest{ID: q.ID, Follow: true}, &seen, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a follower whose context ended: %v", err)
	}
	if d, err := r.Process(t.Context(), q.ID); err != nil || !d.Running {
		t.Errorf("followed process: %+v, %v", d, err)
	}
	if got, at := r.output(t, proto.OutputRequest{ID: q.ID, Limit: 10, Follow: true}); len(got) != 10 || at < 10 {
		t.Errorf("limit: got %d bytes to %d", len(got), at)
	}
	r.Signal(t.Context(), q.ID, syscall.SIGKILL)
	r.Exec(t.Context(), shell("pkill -f '^sleep 600$'"), agent.IO{})
}

type counter struct {
	n, after int
	then     func()
}

func (c *counter) Write(p []byte) (int, error) {
	if c.n += len(p); c.n >= c.after {
		c.then()
	}
	return len(p), nil
}

// TestBackgroundBounds: neither output nor processes that have ended fill the
// guest's memory.
func TestBackgroundBounds(t *testing.T) {
	r := startProcess(t)
	const size = 40 << 20
	p := r.start(t, shell(fmt.Sprintf("head -c %d /dev/zero; printf end", size)))
	if _, err := r.Wait(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	d, err := r.Process(t.Context(), p.ID)
	if err != nil || d.OutputBytes != size+3 || d.OutputFrom < size-1<<20 || d.OutputFrom > size-1<<19 {
		t.Errorf("kept from %d of %d, %v", d.OutputFrom, d.OutputBytes, err)
	}
	skipped := int64(0)
	var b bytes.Buffer
	at, err := r.Output(t.Context(), proto.OutputRequest{ID: p.ID, Offset: 5}, &b, func(n int64) { skipped += n })
	if err != nil || at != d.OutputBytes || skipped != d.OutputFrom-5 || !strings.HasSuffix(b.String(), "end") {
		t.Errorf("got %d bytes to %d, %d skipped, %v", b.Len(), at, skipped, err)
	}
	for range 40 {
		q := r.start(t, shell("head -c 1048576 /dev/zero"))
		if _, err := r.Wait(t.Context(), q.ID); err != nil {
			t.Fatal(err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int
	for line := range strings.Lines(string(status)) {
		fmt.Sscanf(line, "VmRSS: %d kB", &kib)
	}
	if kib > 80<<10 {
		t.Errorf("the agent has %d KiB resident", kib)
	}
	for range 70 {
		r.start(t, proto.ExecRequest{Args: []string{"true"}})
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		list, err := r.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 64 && !list[63].Running {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes are remembered", len(list))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestOutdated: an agent from before the routes is told from one that has them.
func TestOutdated(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(proto.VersionHeader, fmt.Sprint(proto.Version))
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":"not_found","message":"no route"}`)
	})}
	go old.Serve(ln)
	defer old.Close()
	c := dialing(ln.Addr().String())
	defer c.Close()
	if _, err := c.Start(t.Context(), shell("true")); !errors.Is(err, agent.ErrOutdated) {
		t.Errorf("start: %v", err)
	}
	if err := c.Watch(t.Context(), proto.WatchRequest{Path: "/"}, nil, nil); !errors.Is(err, agent.ErrOutdated) {
		t.Errorf("watch: %v", err)
	}
}
