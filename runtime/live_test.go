package runtime

import (
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
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/agent"
)

func (h *host) forwarded(t *testing.T, name string) []netplumb.Port {
	t.Helper()
	r, err := h.find(name)
	if err != nil {
		t.Fatal(err)
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	return h.net.up[r.ID].Ports
}

func TestPortsOfARunningSandbox(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	h.boot(t, "b")
	p, err := h.AddPort(t.Context(), "a", Port{HostIP: "127.0.0.1", Guest: 80})
	if err != nil || p.Host == 0 || p.Protocol != "tcp" {
		t.Fatalf("free port: %+v, %v", p, err)
	}
	if got := h.forwarded(t, "a"); len(got) != 1 || got[0].Host != p.Host || got[0].Guest != 80 {
		t.Errorf("forwarded: %v", got)
	}
	if _, err := h.AddPort(t.Context(), "b", Port{Host: p.Host, Guest: 1}); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "sandbox a") {
		t.Errorf("a port of another sandbox: %v", err)
	}
	if _, err := h.AddPort(t.Context(), "a", Port{Host: p.Host, Guest: 1}); !errors.Is(err, ErrBusy) {
		t.Errorf("its own port again: %v", err)
	}
	// What the network refuses leaves no trace.
	h.net.fail = func(string) error { return &netplumb.PortError{Reason: "taken"} }
	if _, err := h.AddPort(t.Context(), "a", Port{Host: 9, Guest: 1}); !errors.Is(err, ErrBusy) {
		t.Errorf("taken: %v", err)
	}
	h.net.fail = nil
	if s, err := h.Inspect(t.Context(), "a"); err != nil || len(s.Ports) != 1 {
		t.Errorf("after a refusal: %v, %v", s.Ports, err)
	}
	if err := h.RemovePort(t.Context(), "a", Port{Host: 9}); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove of none: %v", err)
	}
	if err := h.RemovePort(t.Context(), "a", Port{Host: p.Host}); err != nil {
		t.Errorf("remove without an address: %v", err)
	}
	if got := h.forwarded(t, "a"); len(got) != 0 {
		t.Errorf("after remove: %v", got)
	}
	for _, bad := range []Port{{Host: 1}, {Host: 1, Guest: 1, Protocol: "sctp"}, {HostIP: "::1", Host: 1, Guest: 1}} {
		if _, err := h.AddPort(t.Context(), "a", bad); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestPortsOfAStoppedSandbox: promised now, forwarded with the next start.
func TestPortsOfAStoppedSandbox(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	if err := h.Stop(t.Context(), StopRequest{Name: "a", Timeout: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := uint16(l.Addr().(*net.TCPAddr).Port)
	if _, err := h.AddPort(t.Context(), "a", Port{HostIP: "127.0.0.1", Host: taken, Guest: 80}); !errors.Is(err, ErrBusy) {
		t.Errorf("a port that a process has: %v", err)
	}
	p, err := h.AddPort(t.Context(), "a", Port{HostIP: "127.0.0.1", Guest: 80})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := h.forwarded(t, "a"); len(got) != 1 || got[0].Host != p.Host {
		t.Errorf("after start: %v", got)
	}
}

func TestDialPort(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	if _, err := h.DialPort(t.Context(), "a", 1024); !errors.Is(err, ErrUsage) {
		t.Errorf("the agent's port: %v", err)
	}
	c, err := h.DialPort(t.Context(), "a", 80) // where an agent answers, here
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /v1/status HTTP/1.0\r\n\r\n")
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
		t.Errorf("got %q, %v", answer, err)
	}
	// It ends with the machine.
	c, err = h.DialPort(t.Context(), "a", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	if err := h.Remove(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-read:
		if err == nil {
			t.Error("a byte came from a machine that has gone")
		}
	case <-time.After(5 * time.Second):
		t.Error("the connection outlives its machine")
	}
	if _, err := h.DialPort(t.Context(), "a", 80); !errors.Is(err, ErrNotFound) {
		t.Errorf("after rm: %v", err)
	}
}

func TestProcesses(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	p, err := h.StartProcess(t.Context(), ExecRequest{Name: "a", Args: []string{"sh", "-c", "echo hello; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = h.WaitProcess(t.Context(), "a", p.ID); err != nil || p.Running || p.ExitCode == nil || *p.ExitCode != 3 {
		t.Fatalf("wait: %+v, %v", p, err)
	}
	var out bytes.Buffer
	if at, err := h.ProcessOutput(t.Context(), ProcessOutputRequest{Name: "a", ID: p.ID, Offset: 1, Limit: 3}, &out); err != nil || at != 4 || out.String() != "ell" {
		t.Errorf("output: %q to %d, %v", out.String(), at, err)
	}
	var cannot *StartError
	if _, err := h.StartProcess(t.Context(), ExecRequest{Name: "a", Args: []string{"no-such"}}); !errors.As(err, &cannot) || cannot.Status.Code != 127 || !errors.Is(err, ErrState) {
		t.Errorf("no such command: %v", err)
	}
	q, err := h.StartProcess(t.Context(), ExecRequest{Name: "a", Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveProcess(t.Context(), "a", q.ID); !errors.Is(err, ErrState) || !strings.Contains(Hint(err), "process kill a "+q.ID) {
		t.Errorf("remove of a running one: %v, hint %q", err, Hint(err))
	}
	if err := h.SignalProcess(t.Context(), "a", q.ID, 9); err != nil {
		t.Error(err)
	}
	if q, err = h.WaitProcess(t.Context(), "a", q.ID); err != nil || q.Signal != 9 || *q.ExitCode != 137 {
		t.Errorf("killed: %+v, %v", q, err)
	}
	if list, err := h.ListProcesses(t.Context(), "a"); err != nil || len(list) != 2 || list[0].ID != p.ID {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := h.RemoveProcess(t.Context(), "a", p.ID); err != nil {
		t.Error(err)
	}
	if _, err := h.InspectProcess(t.Context(), "a", p.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("after remove: %v", err)
	}
	if _, err := h.ListProcesses(t.Context(), "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no sandbox: %v", err)
	}
}

// TestOutdatedGuest: its error says what can be done.
func TestOutdatedGuest(t *testing.T) {
	err := guestError("a", "list processes", fmt.Errorf("ask: %w", agent.ErrOutdated))
	if !errors.Is(err, ErrState) || Hint(err) == "" || !strings.Contains(err.Error(), "earlier sietch") {
		t.Errorf("got %v, hint %q", err, Hint(err))
	}
}

func TestFiles(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	dir := t.TempDir() // the guest is this process
	if err := h.MakeDir(t.Context(), "a", dir+"/x/y", 0o700, true); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"b", "a"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := h.ListDir(t.Context(), "a", dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	if want := []string{"a", "b", "x"}; !slices.Equal(names, want) || !list[2].IsDir {
		t.Errorf("list: %v want %v", names, want)
	}
	if err := h.RemovePath(t.Context(), "a", dir+"/x", false); !errors.Is(err, ErrState) {
		t.Errorf("remove of a full directory: %v", err)
	}
	if err := h.RemovePath(t.Context(), "a", "relative", true); !errors.Is(err, ErrUsage) {
		t.Errorf("relative: %v", err)
	}
	enough := errors.New("enough")
	started := func() { os.WriteFile(dir+"/x/y/new", nil, 0o600) }
	err = h.WatchPath(t.Context(), WatchRequest{Name: "a", Path: dir, Recursive: true, Started: started}, func(e FileEvent) error {
		if e != (FileEvent{Path: dir + "/x/y/new", Op: "create"}) {
			t.Errorf("got %+v", e)
		}
		return enough
	})
	if err != enough {
		t.Errorf("what each returns: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := h.WatchPath(ctx, WatchRequest{Name: "a", Path: dir, Started: cancel}, nil); err != nil {
		t.Errorf("ended by its caller: %v", err)
	}
}

func TestExpiry(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		r := h.boot(t, name)
		if name != "d" {
			r.Expires = expiry(time.Hour)
		}
		if err := h.save(r); err != nil {
			t.Fatal(err)
		}
	}
	c := h.mustCommit(t, "a", "one")
	expire := func(names ...string) {
		for _, name := range names {
			r, err := h.find(name)
			if err != nil {
				t.Fatal(err)
			}
			r.Expires = expiry(time.Nanosecond)
			if err := h.save(r); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	if gone, err := h.Expire(t.Context()); err != nil || len(gone) > 0 {
		t.Errorf("before their time: %v, %v", gone, err)
	}
	// A copy has no expiry of its source's.
	forks, err := h.Fork(t.Context(), ForkRequest{From: "a", N: 1, Prefix: "f"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := h.Inspect(t.Context(), forks[0].Name); err != nil || s.Expires != nil {
		t.Errorf("the copy expires at %v, %v", s.Expires, err)
	}
	expire("a")
	if gone, err := h.Expire(t.Context()); err != nil || !slices.Equal(gone, []string{"a"}) {
		t.Errorf("removed %v, %v", gone, err)
	}
	if _, err := h.Show(t.Context(), c.ID); err != nil {
		t.Errorf("its commit went too: %v", err)
	}
	expire("b", "c")
	if _, err := h.Commit(t.Context(), CommitRequest{Name: "b"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("commit of an expired one: %v", err)
	}
	if err := h.makeRoom(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := h.leftovers(t, "d", forks[0].Name); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// happened lists events as "type sandbox ref".
func (h *host) happened(t *testing.T, after int64) []string {
	t.Helper()
	var all []string
	last := after
	err := h.Events(t.Context(), EventsRequest{After: after}, func(ev Event) error {
		if ev.ID <= last || ev.Time.IsZero() {
			t.Errorf("event %d after %d, at %s", ev.ID, last, ev.Time)
		}
		last = ev.ID
		all = append(all, strings.TrimRight(strings.Join([]string{ev.Type, ev.Sandbox, ev.Ref}, " "), " "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEvents(t *testing.T) {
	h := newHost(t)
	if got := h.happened(t, 0); len(got) > 0 {
		t.Errorf("at first: %v", got)
	}
	h.boot(t, "a")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := h.mustCommit(t, "a", "one")
	must(h.Pause(t.Context(), "a"))
	must(h.Pause(t.Context(), "a"))
	must(h.Resume(t.Context(), "a"))
	_, err := h.CreateRef(t.Context(), TagRef, "v1", c.ID)
	must(err)
	_, err = h.CreateRef(t.Context(), TagRef, "v1", c.ID)
	if err == nil {
		t.Error("a second tag of the same name")
	}
	must(h.RenameBranch(t.Context(), "a", "main"))
	_, err = h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "v1"})
	must(err)
	_, err = h.Fork(t.Context(), ForkRequest{From: "v1", N: 1, Prefix: "f"}, nil)
	must(err)
	must(h.Stop(t.Context(), StopRequest{Name: "a", Timeout: time.Millisecond}))
	must(h.Stop(t.Context(), StopRequest{Name: "a"}))
	_, err = h.Start(t.Context(), "a")
	must(err)
	must(h.Remove(t.Context(), "a", true))
	must(h.DeleteRef(t.Context(), TagRef, "v1"))
	_, err = h.GC(t.Context(), true)
	must(err)
	want := []string{
		"commit.create a a", "sandbox.pause a", "sandbox.resume a", "tag.create  v1", "branch.rename  main",
		"commit.create a", "sandbox.checkout a v1", "sandbox.fork f", "sandbox.stop a", "sandbox.start a",
		"sandbox.remove a", "tag.delete  v1",
	}
	if got := h.happened(t, 0); !slices.Equal(got, want) {
		t.Errorf("events: %s", cmp.Diff(want, got))
	}
	if got := h.happened(t, 10); !slices.Equal(got, want[10:]) {
		t.Errorf("after 10: %v", got)
	}
	if st, err := os.Stat(h.journal()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("journal: %v, %v", st.Mode(), err)
	}
}

// TestJournalOfManyProcesses: ids are in order whoever writes, also while the
// journal is rotated, and a follower misses nothing.
func TestJournalOfManyProcesses(t *testing.T) {
	if dir := os.Getenv("SIETCH_TEST_JOURNAL"); dir != "" {
		for range 200 {
			if err := (layout{data: dir}).appendEvent(Event{Type: "gc"}, 24<<10); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	h := newHost(t)
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	const writers = 4
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var seen []int64
	followed := make(chan error, 1)
	go func() {
		followed <- h.Events(ctx, EventsRequest{Follow: true}, func(ev Event) error {
			seen = append(seen, ev.ID)
			if len(seen) == writers*200 {
				return io.EOF
			}
			return nil
		})
	}()
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestJournalOfManyProcesses$")
			cmd.Env = append(os.Environ(), "SIETCH_TEST_JOURNAL="+h.data)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("writer: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if err := <-followed; err != io.EOF {
		t.Fatalf("follower saw %d events: %v", len(seen), err)
	}
	for i, id := range seen {
		if id != int64(i+1) {
			t.Fatalf("event %d has id %d", i+1, id)
		}
	}
	if _, err := os.Stat(h.oldJournal()); err != nil {
		t.Errorf("it was never rotated: %v", err)
	}
}

// TestTornJournal: what a power loss leaves does not end the journal.
func TestTornJournal(t *testing.T) {
	h := newHost(t)
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	h.emit(Event{Type: "gc"})
	f, err := os.OpenFile(h.journal(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"id":2,"ti`)
	f.Close()
	h.emit(Event{Type: "gc"})
	if got := h.happened(t, 0); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	if last, torn, err := h.lastEvent(); err != nil || last != 2 || torn {
		t.Errorf("last %d, torn %v, %v", last, torn, err)
	}
}

// TestUnknownUser: the guest here is this host, which has no such user either.
func TestUnknownUser(t *testing.T) {
	h := newHost(t)
	for user, known := range map[string]bool{"nosuch-user": false, "root": true, "4711": true, "root:nosuch-group": false} {
		r := &record{Name: "a", askedUser: user, Machine: machine{Version: machineVersion, CPUs: 1, MemoryBytes: 128 << 20, DiskBytes: 32 << 20, NetworkMode: NetworkNAT},
			Network: network{Mode: NetworkNAT}}
		if err := h.makeRoom(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := h.bootNew(t.Context(), r)
		if known != (err == nil) || err != nil && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "nosuch")) {
			t.Errorf("%s: got %v", user, err)
		}
		if err == nil {
			if err := h.Remove(t.Context(), "a", true); err != nil {
				t.Fatal(err)
			}
		}
		if left := h.leftovers(t); len(left) > 0 {
			t.Errorf("%s: left %v", user, left)
		}
	}
}
