package acceptance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

type processInfo struct {
	ID          string
	PID         int
	Running     bool
	ExitCode    *int  `json:"exit_code"`
	OutputBytes int64 `json:"output_bytes"`
	OutputFrom  int64 `json:"output_from"`
}

// counted is how far a counter in the background has come.
func (r *repo) counted(t *testing.T, name, id string) int {
	t.Helper()
	lines := strings.Fields(r.ok(t, "process", "logs", name, id))
	if len(lines) == 0 {
		return 0
	}
	for i, l := range lines {
		if l != strconv.Itoa(i+1) {
			t.Fatalf("line %d of the counter in %s is %q", i+1, name, l)
		}
	}
	return len(lines)
}

// TestBackground: commands in the background and what they wrote belong to the
// machine. They are there, and go on, in a fork and after a checkout.
func TestBackground(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	id := r.ok(t, "exec", "-d", name, "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done")
	waitFor(t, 20*time.Second, "the counter to count", func() bool { return r.counted(t, name, id) >= 5 })
	c := r.commit(t, name, "while it counts")
	before := r.counted(t, name, id)

	fork := r.fork(t, 1, c.ID)[0].Name
	there := query[processInfo](t, r, "process", "inspect", fork, id)
	if !there.Running {
		t.Fatalf("in the fork: %+v", there)
	}
	// What was written before the commit is readable by offset, and more comes.
	if got := r.ok(t, "process", "logs", "--offset", "2", "--limit", "7", fork, id); got != "2\n3\n4\n5" {
		t.Errorf("by offset, in the fork: got %q", got)
	}
	from := r.counted(t, fork, id)
	waitFor(t, 20*time.Second, "the fork's counter to go on", func() bool { return r.counted(t, fork, id) >= from+5 })

	// Each is its own: ended in one, running in the other.
	r.ok(t, "process", "kill", fork, id)
	if got := r.ok(t, "process", "wait", fork, id); got != "143" {
		t.Errorf("killed in the fork: exit code %s", got)
	}
	if p := query[processInfo](t, r, "process", "inspect", name, id); !p.Running {
		t.Errorf("the original was killed with its copy: %+v", p)
	}
	r.fails(t, 1, []string{"is running", "process kill"}, "process", "rm", name, id)
	r.ok(t, "process", "rm", fork, id)
	r.fails(t, 3, []string{id}, "process", "logs", fork, id)

	// Back in time it is what it was then.
	r.ok(t, "process", "kill", "-s", "KILL", name, id)
	r.ok(t, "process", "wait", name, id)
	r.ok(t, "checkout", "--no-save", name, c.ID)
	if p := query[processInfo](t, r, "process", "inspect", name, id); !p.Running {
		t.Errorf("after checkout: %+v", p)
	}
	if got := r.counted(t, name, id); got < 5 {
		t.Errorf("after checkout its output has %d lines, %d at the commit", got, before)
	}
	waitFor(t, 20*time.Second, "the counter to go on after checkout", func() bool { return r.counted(t, name, id) > before+5 })
	r.remove(t, name, fork)
}

// TestBackgroundOutput is what it costs and how it is read.
func TestBackgroundOutput(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	// Streams are merged in their order; a follower sees the end.
	id := r.ok(t, "exec", "-d", "-e", "A=of-exec", "-w", "/tmp", "-u", "nobody", name, "--",
		"sh", "-c", "echo out $A; echo err >&2; pwd; id -u; sleep 1; echo late; exit 9")
	if got, want := r.ok(t, "process", "logs", "-f", name, id), "out of-exec\nerr\n/tmp\n65534\nlate"; got != want {
		t.Errorf("followed: got %q want %q", got, want)
	}
	if got := r.ok(t, "process", "wait", name, id); got != "9" {
		t.Errorf("exit code %s, want 9", got)
	}
	// Endless output takes no more memory than a little, and no disk.
	disk := r.in(t, name, "df -k / | tail -1 | awk '{print $3}'")
	big := r.ok(t, "exec", "-d", name, "--", "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end")
	r.ok(t, "process", "wait", name, big)
	p := query[processInfo](t, r, "process", "inspect", name, big)
	if kept := p.OutputBytes - p.OutputFrom; p.OutputBytes != 5000009 || kept > 1<<20 || kept < 1<<19 {
		t.Errorf("of 5000009 bytes: %+v", p)
	}
	res := r.try(t, "process", "logs", "--offset", fmt.Sprint(p.OutputBytes-8), name, big)
	if res.code != 0 || res.stdout != "the end\n" {
		t.Errorf("the end of much output: %s", res)
	}
	res = r.try(t, "process", "logs", name, big)
	if res.code != 0 || int64(len(res.stdout)) != p.OutputBytes-p.OutputFrom || !strings.Contains(res.stderr, "no longer kept") {
		t.Errorf("what is left of much output: exit code %d, %d bytes, stderr %q", res.code, len(res.stdout), res.stderr)
	}
	if after := r.in(t, name, "df -k / | tail -1 | awk '{print $3}'"); after != disk {
		t.Errorf("output took disk: %s KiB used, %s before", after, disk)
	}
	if got := r.ok(t, "process", "ls", "-q", name); got != id+"\n"+big {
		t.Errorf("ls: got %q", got)
	}
	r.fails(t, 127, []string{"no-such"}, "exec", "-d", name, "--", "no-such-command")
	r.fails(t, 1, []string{"nosuch", "no such user"}, "exec", "-d", "-u", "nosuch", name, "--", "true")
}

// waitFor polls until something is so.
func waitFor(t *testing.T, limit time.Duration, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within(limit))
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %s in vain for %s", within(limit), what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
