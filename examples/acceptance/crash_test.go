package acceptance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// killPoints is how many instants of each verb are cut off; hazard 9 asks for 20
// and SIETCH_TEST_KILLS gives them.
func killPoints(t *testing.T) int {
	t.Helper()
	s := os.Getenv("SIETCH_TEST_KILLS")
	if s == "" {
		return 4
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("SIETCH_TEST_KILLS: %v", err)
	}
	return n
}

// TestKill is hazard 9: after a kill -9 at any point of a verb, the next command
// adopts or removes what is there, the source lives, and history is whole.
func TestKill(t *testing.T) {
	together(t)
	r := private(t, filepath.Join(area, "kill"))
	points := killPoints(t)
	source := r.runSmall(t)
	want := r.probe(t, source, "set", "source")
	base := r.commit(t, source, "base")
	context, image := t.TempDir(), "killed"
	write(t, filepath.Join(context, "file"), strings.Repeat("payload\n", 100000))

	verbs := []struct {
		name string
		args func(i int) []string
	}{
		{"run", func(int) []string {
			return []string{"run", "--name", fresh("k"), "--memory", "256M", "--disk", "256M", "small"}
		}},
		{"commit", func(i int) []string { return []string{"commit", "-m", fmt.Sprint("cut ", i), source} }},
		{"fork", func(int) []string { return []string{"fork", "-n", "2", "--name", fresh("k"), base.ID} }},
		{"fork of a running machine", func(int) []string { return []string{"fork", "-n", "2", "--name", fresh("k"), source} }},
		{"checkout", func(int) []string { return []string{"checkout", source, base.ID} }},
		{"build", func(i int) []string {
			// Another content each time, so that no step is cached.
			write(t, filepath.Join(context, "Dockerfile"), fmt.Sprintf("FROM scratch\nLABEL n=%d\nCOPY file /file%d\n", i, i))
			return []string{"build", "--progress", "quiet", "-t", image, context}
		}},
		{"rm", nil}, // needs a machine each time, see below
	}
	for _, v := range verbs {
		t.Run(v.name, func(t *testing.T) {
			args := v.args
			if args == nil {
				args = func(int) []string { return []string{"rm", "-f", r.fork(t, 1, base.ID)[0].Name} }
			}
			// Once to its end, to know how long it takes.
			res := r.try(t, args(0)...)
			if res.code != 0 {
				t.Fatal(res)
			}
			for i := 1; i <= points; i++ {
				cut := res.took * time.Duration(i) / time.Duration(points+1)
				r.kill(t, cut, args(i)...)
				r.whole(t, source, want)
			}
		})
	}

	// Whatever the cuts made is removable, and then gone; watch sees to the host.
	for _, s := range r.all(t) {
		r.remove(t, s.Name)
	}
	r.ok(t, "fsck")
	r.ok(t, "gc")
	r.ok(t, "fsck")
	again := r.fork(t, 1, base.ID)[0]
	if got := r.probe(t, again.Name, "get"); got[1] != want[1] {
		t.Errorf("after gc the base commit brings back nonce %s, want %s", got[1], want[1])
	}
	r.remove(t, again.Name)
}

// kill starts a command and ends it, and nothing it started, after that time.
func (r *repo) kill(t *testing.T, after time.Duration, args ...string) {
	t.Helper()
	cmd := r.command(context.Background(), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	err := cmd.Wait()
	t.Logf("sietch %s cut off after %s: %v", strings.Join(args[:min(len(args), 2)], " "), after.Round(time.Millisecond), err)
}

// whole wants every sandbox that is listed to be what its state says, the source
// to be the same running machine, and history readable.
func (r *repo) whole(t *testing.T, source string, want []string) {
	t.Helper()
	found := false
	for _, s := range r.all(t) {
		found = found || s.Name == source
		switch s.State {
		case "running":
			if s.PID <= 0 || syscall.Kill(s.PID, 0) != nil {
				t.Errorf("%s is said to run as process %d, which is not there", s.Name, s.PID)
			}
			res := r.try(t, "exec", s.Name, "--", "probe", "get")
			if res.code != 0 {
				t.Errorf("%s is said to run but does not answer: %s", s.Name, res)
			}
		case "stopped", "failed":
			if s.Name == source {
				t.Errorf("the source is %s", s.State)
			}
		default:
			t.Errorf("%s was left %s", s.Name, s.State)
		}
		if s.Name != source {
			r.remove(t, s.Name)
		}
	}
	if !found {
		t.Fatalf("the source is gone")
	}
	if got := r.probe(t, source, "get"); got[1] != want[1] {
		t.Errorf("the source is another process: nonce %s, want %s", got[1], want[1])
	}
	r.ok(t, "fsck")
}

// TestInterrupt wants Ctrl-C to end a verb soon, with 130 and everything undone.
func TestInterrupt(t *testing.T) {
	r := shared(t)
	name := fresh("int")
	cmd := r.command(context.Background(), "run", "--name", name, "--memory", "256M", "small")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(within(700 * time.Millisecond))
	asked := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != 130 {
		t.Errorf("exit code %d after an interrupt, want 130", code)
	}
	if took := time.Since(asked); took > within(10*time.Second) {
		t.Errorf("the interrupt took %s", took)
	}
	if left := r.all(t); len(left) != 0 {
		t.Errorf("left by an interrupted run: %+v", left)
	}
}

// TestVMMDies kills a machine behind the back of everybody.
func TestVMMDies(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	r.in(t, name, "echo kept > /root/file; sync")
	want := r.probe(t, name, "get")[1]
	c := r.commit(t, name, "before")
	if err := syscall.Kill(r.inspect(t, name).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(within(5 * time.Second))
	for r.inspect(t, name).State == "running" && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	if got := r.inspect(t, name).State; got != "failed" && got != "stopped" {
		t.Errorf("state of a machine whose VMM was killed: %s", got)
	}
	r.fails(t, 1, []string{name}, "exec", name, "--", "true")
	r.ok(t, "start", name)
	if got := r.in(t, name, "cat /root/file"); got != "kept" {
		t.Errorf("after a new start the disk says %q", got)
	}
	r.ok(t, "checkout", name, c.ID)
	if got := r.probe(t, name, "get")[1]; got != want {
		t.Errorf("checkout brought back nonce %s, want %s", got, want)
	}
	r.remove(t, name)
}

// TestBusy runs verbs against each other on one data directory: all succeed, or
// say that they did not get their turn, and nothing is lost.
func TestBusy(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	const n = 6
	results := make(chan result, n)
	for i := range n {
		go func() { results <- r.tryQuiet("commit", "-m", fmt.Sprint("at once ", i), name) }()
	}
	done := 0
	for range n {
		res := <-results
		switch res.code {
		case 0:
			done++
		case 4:
		default:
			t.Errorf("want 0 or 4: %s", res)
		}
	}
	if done == 0 {
		t.Error("of commits at once not one succeeded")
	}
	if got := len(query[[]commitInfo](t, r, "log", name)); got != done {
		t.Errorf("%d commits succeeded, the log of %s has %d", done, name, got)
	}
	r.remove(t, name)
}

// tryQuiet is try for goroutines: it cannot fail a test.
func (r *repo) tryQuiet(args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := time.Now()
	cmd := r.command(ctx, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	return result{args: args, stdout: string(out), stderr: stderr.String(), code: exitCode(err), took: time.Since(start)}
}

// TestNoSpace is hazard 8: with the disk full a commit fails with a clear word,
// the machine goes on, history stays whole, and with room again all is well.
func TestNoSpace(t *testing.T) {
	needMachines(t)
	dir := filepath.Join(area, "small-disk")
	mountSmall(t, dir, 1536<<20)
	r := private(t, filepath.Join(dir, "data"))
	name := r.runSmall(t)
	base := r.commit(t, name, "base")
	sum := r.probe(t, name, "fill", "64")[0]

	ballast := filepath.Join(dir, "ballast")
	for _, leave := range []int64{0, 8 << 20, 40 << 20} {
		fill(t, ballast, dir, leave)
		r.fails(t, 1, []string{"space"}, "commit", "-m", "does not fit", name)
		// A guest that writes to a full disk stands still, until there is room.
		if got := r.inspect(t, name); got.State != "running" && got.Reason == "" || got.Head.Commit != base.ID {
			t.Errorf("with %d MiB left: after the failed commit %s is %s (%s) at %s, want running at %s", leave>>20, name, got.State, got.Reason, got.Head.Commit, base.ID)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if got := r.probe(t, name, "sum"); got[0] != sum {
			t.Errorf("with %d MiB left: buffer has checksum %s, want %s", leave>>20, got[0], sum)
		}
		if got := r.inspect(t, name); got.State != "running" {
			t.Errorf("with room again %s is %s (%s), want running", name, got.State, got.Reason)
		}
		r.ok(t, "fsck")
	}

	c := r.commit(t, name, "fits now")
	if len(c.Parents) != 1 || c.Parents[0] != base.ID {
		t.Errorf("parents %v, want [%s]", c.Parents, base.ID)
	}
	f := r.fork(t, 1, c.ID)[0]
	if got := r.probe(t, f.Name, "sum"); got[0] != sum || got[1] != sum {
		t.Errorf("the fork's buffer has checksums %v, want %s", got, sum)
	}

	// What is there can be held, stopped and removed without a byte free.
	spare := r.fork(t, 1, c.ID)[0]
	fill(t, ballast, dir, 0)
	for range 3 {
		r.ok(t, "pause", spare.Name)
		r.ok(t, "resume", spare.Name)
	}
	r.ok(t, "rm", "-f", spare.Name)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}

	// A fork and a run that do not fit leave nothing either.
	fill(t, ballast, dir, 0)
	before := len(r.all(t))
	for _, args := range [][]string{
		{"run", "--name", fresh("nofit"), "--memory", "256M", "--disk", "256M", "small"},
		{"build", "--progress", "quiet", "-t", "nofit", bigContext(t)},
	} {
		if res := r.try(t, args...); res.code == 0 && args[0] == "build" {
			t.Errorf("built 64 MiB into no space: %s", res)
		} else if res.code == 0 {
			r.remove(t, args[2]) // a layer that fits a few kilobytes is no fault
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if got := len(r.all(t)); got != before {
		t.Errorf("%d sandboxes after failed verbs, %d before", got, before)
	}
	r.ok(t, "fsck")
	r.remove(t, name, f.Name)
}

func bigContext(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("dd", "if=/dev/urandom", "of="+filepath.Join(dir, "big"), "bs=1M", "count=64").CombinedOutput(); err != nil {
		t.Fatalf("dd: %v\n%s", err, out)
	}
	write(t, filepath.Join(dir, "Dockerfile"), "FROM scratch\nCOPY big /big\n")
	return dir
}

// mountSmall puts an ext4 file system of that size at dir until the test ends.
func mountSmall(t *testing.T, dir string, size int64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := dir + ".img"
	for _, step := range [][]string{
		{"truncate", "-s", fmt.Sprint(size), file},
		{"mkfs.ext4", "-q", "-F", "-m", "0", file},
		{"mount", "-o", "loop", file, dir},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system in a file here: %v: %v\n%s", step, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v (somebody still uses it?)\n%s", dir, err, out)
			exec.Command("umount", "-l", dir).Run()
		}
		os.Remove(file)
	})
}

// fill takes all space of the file system of dir but leave bytes.
func fill(t *testing.T, ballast, dir string, leave int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	size := int64(st.Bfree)*st.Bsize - leave
	if size <= 0 {
		t.Fatalf("only %d bytes are free, want to leave %d: make the file system larger", int64(st.Bfree)*st.Bsize, leave)
	}
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The file's own metadata takes a little of it: try until it fits.
	for ; size > 0; size -= 256 << 10 {
		if err = syscall.Fallocate(int(f.Fd()), 0, 0, size); err == nil {
			return
		}
	}
	t.Fatalf("fill file system: %v", err)
}
