package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The JSON shapes of the command line, with the fields these tests judge.
type (
	sandboxInfo struct {
		Name   string
		ID     string
		State  string
		Reason string
		Image  string
		Head   struct{ Branch, Commit string }
		IP     string
		PID    int
		VMM    string
		Dir    string
		Ports  []struct {
			HostIP      string `json:"host_ip"`
			Host, Guest int
			Protocol    string
		}
	}
	commitInfo struct {
		ID      string
		Parents []string
		Sandbox string
		Message string
		Kind    string
		Memory  struct {
			SizeBytes     int64 `json:"size_bytes"`
			ResidentBytes int64 `json:"resident_bytes"`
			ChangedBytes  int64 `json:"changed_bytes"`
			StoredBytes   int64 `json:"stored_bytes"`
		}
		Timing *struct {
			PauseMS float64 `json:"pause_ms"`
			TotalMS float64 `json:"total_ms"`
		}
	}
	forkInfo struct {
		Name, Commit, IP string
		ReadyMS          float64 `json:"ready_ms"`
	}
	errorInfo struct {
		Error struct{ Code, Message, Hint string }
	}
)

// repo drives the binary on one data directory.
type repo struct {
	dir string
	env []string // added to the environment; later wins
}

// result is one finished command.
type result struct {
	args           []string
	stdout, stderr string
	code           int
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("sietch %s: exit code %d after %.1f s\nstdout:\n%s\nstderr:\n%s",
		strings.Join(r.args, " "), r.code, r.took.Seconds(), r.stdout, r.stderr)
}

// patience bounds any one command; a hung command is a failure with its output.
var patience = within(3 * time.Minute)

func (r *repo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "SIETCH_DATA_DIR="+r.dir, "NO_COLOR=1")
	cmd.Env = append(cmd.Env, r.env...)
	// What a killed command started may hold its pipes.
	cmd.WaitDelay = within(2 * time.Second)
	return cmd
}

// try runs a command and judges nothing.
func (r *repo) try(t testing.TB, args ...string) result {
	t.Helper()
	return r.tryInput(t, nil, args...)
}

func (r *repo) tryInput(t testing.TB, stdin []byte, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := r.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	start := time.Now()
	err := cmd.Run()
	res := result{args: args, stdout: stdout.String(), stderr: stderr.String(), took: time.Since(start)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		res.code = exit.ExitCode()
	case errors.Is(err, exec.ErrWaitDelay):
		t.Errorf("sietch %s ended but left somebody holding its output", strings.Join(args, " "))
	case err != nil:
		t.Fatalf("start sietch: %v", err)
	}
	if ctx.Err() != nil {
		t.Fatalf("did not end in %s: %s", patience, res)
	}
	return res
}

// ok runs a command that must succeed and returns its stdout, trimmed.
func (r *repo) ok(t testing.TB, args ...string) string {
	t.Helper()
	res := r.try(t, args...)
	if res.code != 0 {
		t.Fatalf("want success: %s", res)
	}
	return strings.TrimSpace(res.stdout)
}

// fails runs a command that must end with the code, print nothing on stdout, and
// say each of the words on stderr.
func (r *repo) fails(t testing.TB, code int, words []string, args ...string) result {
	t.Helper()
	res := r.try(t, args...)
	if res.code != code {
		t.Errorf("want exit code %d: %s", code, res)
	}
	if res.stdout != "" {
		t.Errorf("want nothing on stdout: %s", res)
	}
	for _, w := range words {
		if !strings.Contains(strings.ToLower(res.stderr), strings.ToLower(w)) {
			t.Errorf("want %q on stderr: %s", w, res)
		}
	}
	for _, w := range []string{"panic:", "goroutine ", "%!"} {
		if strings.Contains(res.stderr, w) {
			t.Errorf("want no %q on stderr: %s", w, res)
		}
	}
	return res
}

// query runs a command with --json and decodes its one document.
func query[T any](t testing.TB, r *repo, args ...string) T {
	t.Helper()
	out := r.ok(t, append([]string{"--json"}, args...)...)
	var v T
	dec := json.NewDecoder(strings.NewReader(out))
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("sietch --json %s: %v in:\n%s", strings.Join(args, " "), err, out)
	}
	if dec.More() {
		t.Fatalf("sietch --json %s: more than one document:\n%s", strings.Join(args, " "), out)
	}
	return v
}

// stream is query for commands that print an object a line.
func stream[T any](t testing.TB, r *repo, args ...string) []T {
	t.Helper()
	out := r.ok(t, append([]string{"--json"}, args...)...)
	var all []T
	for line := range strings.Lines(out) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("sietch --json %s: %v in line:\n%s", strings.Join(args, " "), err, line)
		}
		all = append(all, v)
	}
	return all
}

var names atomic.Int64

// fresh makes a name no other test of this run uses.
func fresh(prefix string) string { return fmt.Sprintf("%s%d", prefix, names.Add(1)) }

// runSmall boots the small image under a fresh name; its probe serves.
func (r *repo) runSmall(t testing.TB, flags ...string) string {
	t.Helper()
	name := fresh("box")
	args := append([]string{"run", "--name", name, "--memory", "256M", "--disk", "256M"}, flags...)
	got := r.ok(t, append(args, "small")...)
	if got != name {
		t.Fatalf("run printed %q, want the name %q", got, name)
	}
	return name
}

// in runs a shell line in a sandbox, which must succeed, and returns its stdout.
func (r *repo) in(t testing.TB, name, line string) string {
	t.Helper()
	return r.ok(t, "exec", name, "--", "sh", "-c", line)
}

// probe asks the probe in a sandbox and splits its answer.
func (r *repo) probe(t testing.TB, name string, words ...string) []string {
	t.Helper()
	return strings.Fields(r.ok(t, append([]string{"exec", name, "--", "probe"}, words...)...))
}

func (r *repo) inspect(t testing.TB, name string) sandboxInfo {
	t.Helper()
	return query[sandboxInfo](t, r, "inspect", name)
}

func (r *repo) commit(t testing.TB, name, message string) commitInfo {
	t.Helper()
	c := query[commitInfo](t, r, "commit", "-m", message, name)
	if c.ID == "" || c.Timing == nil || c.Timing.PauseMS <= 0 {
		t.Fatalf("commit of %s answers without id or timing: %+v", name, c)
	}
	return c
}

func (r *repo) fork(t testing.TB, n int, from string) []forkInfo {
	t.Helper()
	forks := stream[forkInfo](t, r, "fork", "-n", strconv.Itoa(n), "--name", fresh("f"), from)
	if len(forks) != n {
		t.Fatalf("fork -n %d of %s made %d: %+v", n, from, len(forks), forks)
	}
	seen := map[string]bool{}
	for _, f := range forks {
		if seen[f.Name] || f.Name == "" || f.ReadyMS <= 0 {
			t.Fatalf("fork answers with a name twice, or none, or no time: %+v", forks)
		}
		seen[f.Name] = true
	}
	return forks
}

// remove drops sandboxes whatever state they are in.
func (r *repo) remove(t testing.TB, names ...string) {
	t.Helper()
	r.ok(t, append([]string{"rm", "-f"}, names...)...)
}

// all is every sandbox that there is.
func (r *repo) all(t testing.TB) []sandboxInfo {
	t.Helper()
	return query[[]sandboxInfo](t, r, "ps", "-a")
}

// cleanLayers wants the file systems of machines clean: as they lie on the disk
// at a pause, after a journal replay, and without one after a stop, in which it
// leaves them.
func (r *repo) cleanLayers(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		layer := filepath.Join(r.inspect(t, name).Dir, "layer.ext4")
		// As if the power went now: what a journal replay makes of it must be
		// whole. A copy, since the machine goes on with the original.
		r.ok(t, "pause", name)
		copied := filepath.Join(t.TempDir(), name+".ext4")
		if out, err := exec.Command("cp", "--sparse=always", layer, copied).CombinedOutput(); err != nil {
			t.Fatalf("copy layer of %s: %v\n%s", name, err, out)
		}
		r.ok(t, "resume", name)
		// 1 is "errors corrected": the replay itself, and orphans.
		if out, err := exec.Command("e2fsck", "-p", copied).CombinedOutput(); exitCode(err) > 1 {
			t.Errorf("layer of paused %s: journal replay: %v\n%s", name, err, out)
		}
		if out, err := exec.Command("e2fsck", "-fn", copied).CombinedOutput(); err != nil {
			t.Errorf("layer of paused %s: %v\n%s", name, err, out)
		}
		os.Remove(copied)

		r.ok(t, "stop", name)
		if out, err := exec.Command("e2fsck", "-fn", layer).CombinedOutput(); err != nil {
			t.Errorf("layer of stopped %s: %v\n%s", name, err, out)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}
