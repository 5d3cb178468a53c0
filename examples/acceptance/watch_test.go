package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// follow runs a command whose stdout is read line by line while it runs.
func (r *repo) follow(t *testing.T, args ...string) (lines <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := r.command(ctx, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = within(10 * time.Second)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	diag, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := make(chan string, 1000)
	go func() { // both end with the command
		for in := bufio.NewScanner(diag); in.Scan(); {
			all <- "stderr: " + in.Text()
		}
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := bufio.NewScanner(out); in.Scan(); {
			all <- in.Text()
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-read
			cmd.Wait()
		}
	}
	t.Cleanup(stop)
	return all, stop
}

// await returns the next lines up to the one that has the words.
func await(t *testing.T, lines <-chan string, words string) []string {
	t.Helper()
	var seen []string
	deadline := time.After(within(30 * time.Second))
	for {
		select {
		case l := <-lines:
			seen = append(seen, l)
			if strings.Contains(l, words) {
				return seen
			}
		case <-deadline:
			t.Fatalf("no line with %q among %q", words, seen)
		}
	}
}

// TestWatch sees what the guest does to its files.
func TestWatch(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	r.ok(t, "file", "mkdir", "-p", name+":/srv/a/b")
	lines, stop := r.follow(t, "file", "watch", "-r", name+":/srv")
	await(t, lines, "watching")
	r.in(t, name, "echo x > /srv/a/b/f; mv /srv/a/b/f /srv/g; rm /srv/g; mkdir /srv/new; sleep 1; echo y > /srv/new/h; touch /srv/last")
	got := await(t, lines, "/srv/last")
	want := []string{
		"create  /srv/a/b/f", "write  /srv/a/b/f", "rename  /srv/a/b/f", "create  /srv/g", "remove  /srv/g",
		"create  /srv/new/", "create  /srv/new/h", "write  /srv/new/h", "create  /srv/last",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	stop()
	// It survives a commit, and ends when the machine does.
	lines, _ = r.follow(t, "file", "watch", "--json", name+":/srv")
	await(t, lines, "watching")
	r.commit(t, name, "while watched")
	r.in(t, name, "rm /srv/last")
	last := await(t, lines, "/srv/last")
	var e struct{ Path, Op string }
	if err := json.Unmarshal([]byte(last[len(last)-1]), &e); err != nil || e.Op != "remove" || e.Path != "/srv/last" {
		t.Errorf("got %q, %v", last, err)
	}
	r.ok(t, "stop", name)
	await(t, lines, "ended or was replaced")
}

// TestFiles works without any program of the guest's.
func TestFiles(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	r.ok(t, "file", "mkdir", "-m", "750", name+":/data")
	r.in(t, name, "echo hello > /data/f; ln -s f /data/l")
	type stat struct {
		Name       string
		Mode       uint32
		SizeBytes  int64  `json:"size_bytes"`
		LinkTarget string `json:"link_target"`
		IsDir      bool   `json:"is_dir"`
	}
	list := query[[]stat](t, r, "file", "ls", name+":/data")
	if len(list) != 2 || list[0] != (stat{"f", 0o100644, 6, "", false}) || list[1] != (stat{"l", 0o120777, 1, "f", false}) {
		t.Errorf("ls: %+v", list)
	}
	if st := query[stat](t, r, "file", "stat", name+":/data"); st.Mode != 0o040750 || !st.IsDir {
		t.Errorf("stat: %+v", st)
	}
	r.fails(t, 1, []string{"not empty"}, "file", "rm", name+":/data")
	r.fails(t, 4, []string{"exists"}, "file", "mkdir", name+":/data")
	r.ok(t, "file", "rm", "-r", name+":/data")
	r.fails(t, 3, []string{"/data"}, "file", "ls", name+":/data")
}
