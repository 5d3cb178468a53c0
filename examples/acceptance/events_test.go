package acceptance

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type eventInfo struct {
	ID                         int64
	Time                       time.Time
	Type, Sandbox, Commit, Ref string
}

// TestEvents: what several processes did comes in one order, to those who ask
// later and to those who wait.
func TestEvents(t *testing.T) {
	together(t)
	r := private(t, filepath.Join(area, "events"))
	lines, stop := r.follow(t, "events", "-f", "--json")
	name := fresh("box")
	r.ok(t, "run", "--name", name, "--memory", "256M", "--disk", "256M", "-m", "first", "small")
	r.ok(t, "pause", name)
	r.ok(t, "resume", name)
	r.ok(t, "tag", "v1", name)
	fork := r.fork(t, 1, "v1")[0].Name
	r.ok(t, "checkout", "--no-save", name, "v1")
	r.remove(t, name, fork)

	want := []string{
		"sandbox.run " + name, "commit.create " + name, "sandbox.pause " + name, "sandbox.resume " + name, "tag.create ",
		"sandbox.fork " + fork, "sandbox.checkout " + name, "sandbox.remove " + name, "sandbox.remove " + fork,
	}
	events := stream[eventInfo](t, r, "events")
	var got []string
	for i, e := range events {
		if i > 0 && (e.ID <= events[i-1].ID || e.Time.Before(events[i-1].Time)) {
			t.Errorf("event %d at %s follows %d at %s", e.ID, e.Time, events[i-1].ID, events[i-1].Time)
		}
		if strings.HasPrefix(e.Type, "image.") {
			continue
		}
		got = append(got, e.Type+" "+e.Sandbox)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(events) > 2 {
		if rest := stream[eventInfo](t, r, "events", "--after", fmt.Sprint(events[1].ID)); len(rest) != len(events)-2 || rest[0] != events[2] {
			t.Errorf("after event %d: %+v", events[1].ID, rest)
		}
	}
	followed := await(t, lines, `"sandbox.remove","sandbox":"`+fork)
	stop()
	var seen []string
	for _, l := range followed {
		var e eventInfo
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		seen = append(seen, e.Type+" "+e.Sandbox)
	}
	if strings.Join(seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("a follower got:\n%s\nwant:\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
}

// TestExpiry: a machine with a time to live goes with the next command after
// it; its copies stay.
func TestExpiry(t *testing.T) {
	r := shared(t)
	life := min(within(25*time.Second), 3*time.Minute).Round(time.Second)
	name := r.runSmall(t, "--ttl", life.String())
	began := time.Now()
	fork := r.fork(t, 1, name)[0].Name
	defer r.remove(t, fork)
	info := query[struct{ Expires *time.Time }](t, r, "inspect", name)
	if info.Expires == nil || time.Until(*info.Expires) > life {
		t.Fatalf("expires: %v", info.Expires)
	}
	if copied := query[struct{ Expires *time.Time }](t, r, "inspect", fork); copied.Expires != nil {
		t.Errorf("the copy expires at %s", copied.Expires)
	}
	r.in(t, name, "true")
	pid := r.inspect(t, name).PID
	time.Sleep(time.Until(began.Add(life + time.Second)))
	r.fails(t, 3, []string{name, "expired"}, "commit", name)
	waitFor(t, within(5*time.Second), "its VMM to go", func() bool { return syscall.Kill(pid, 0) != nil })
	r.fails(t, 3, []string{name}, "inspect", name)
	r.in(t, fork, "true")
}
