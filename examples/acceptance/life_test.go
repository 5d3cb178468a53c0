package acceptance

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLife is the product in one story: a machine is built, run, committed,
// changed, forked from its past, put back, and removed without a trace.
func TestLife(t *testing.T) {
	r := apart(t)
	port := freePort(t)
	name := r.runSmall(t, "-p", fmt.Sprintf("127.0.0.1:%d:8080", port))
	r.in(t, name, "mkdir -p /srv/www; echo served > /srv/www/index.html; httpd -p 8080 -h /srv/www")
	before := r.inspect(t, name)
	if before.State != "running" || before.PID <= 0 || before.IP == "" {
		t.Fatalf("a sandbox that just ran: %+v", before)
	}

	if got := get(t, port); got != "served\n" {
		t.Errorf("through the forwarded port: got %q", got)
	}

	// First state, in memory and on disk.
	first := r.probe(t, name, "set", "first")
	r.in(t, name, "echo first > /root/plan; mkdir -p /srv/deep/er; echo kept > /srv/deep/er/file; rm /etc/motd")
	c1 := r.commit(t, name, "first state")
	if c1.Kind != "full" || c1.Memory.SizeBytes != 256<<20 || c1.Memory.ResidentBytes <= 0 {
		t.Errorf("first commit: %+v", c1)
	}

	// Second state. The machine was not restarted by the commit.
	if got := r.probe(t, name, "set", "second"); got[1] != first[1] {
		t.Errorf("the probe has nonce %s after a commit, %s before: not the same process", got[1], first[1])
	}
	r.in(t, name, "echo second > /root/plan; rm -r /srv/deep; echo new > /root/new")
	c2 := r.commit(t, name, "second state")
	if len(c2.Parents) != 1 || c2.Parents[0] != c1.ID {
		t.Errorf("parents of the second commit: got %v want [%s]", c2.Parents, c1.ID)
	}
	if c2.Memory.ChangedBytes >= c1.Memory.ResidentBytes {
		t.Errorf("second commit says %d bytes of memory changed, of %d resident: it does not cost what changed",
			c2.Memory.ChangedBytes, c1.Memory.ResidentBytes)
	}

	// Four copies of the first, while the source lives.
	forks := r.fork(t, 4, c1.ID)
	var all []string
	for _, f := range forks {
		all = append(all, f.Name)
		if f.Commit != c1.ID {
			t.Errorf("%s: commit %s, want %s", f.Name, f.Commit, c1.ID)
		}
		if f.IP == before.IP {
			t.Errorf("%s has its source's address %s", f.Name, f.IP)
		}
		got := r.probe(t, f.Name, "get")
		if want := first; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Errorf("%s remembers %v, want %v: memory is not the first state's", f.Name, got, want)
		}
		if got := r.in(t, f.Name, "cat /root/plan /srv/deep/er/file; ls /root/new /etc/motd 2>/dev/null; true"); got != "first\nkept" {
			t.Errorf("%s sees %q on disk, want the first state", f.Name, got)
		}
	}
	for i, f := range forks {
		r.probe(t, f.Name, "set", fmt.Sprint("way-", i))
		r.in(t, f.Name, fmt.Sprintf("echo way-%d > /root/plan; dd if=/dev/urandom of=/root/own bs=64k count=16 2>/dev/null", i))
	}
	sums := map[string]string{}
	for i, f := range forks {
		if got, want := r.in(t, f.Name, "cat /root/plan")+" "+r.probe(t, f.Name, "get")[0], fmt.Sprintf("way-%d way-%d", i, i); got != want {
			t.Errorf("%s: disk and memory say %q, want %q", f.Name, got, want)
		}
		sum := r.in(t, f.Name, "md5sum < /root/own")
		if other, twice := sums[sum]; twice {
			t.Errorf("%s and %s have the same random file: a disk is shared", f.Name, other)
		}
		sums[sum] = f.Name
	}
	if got := r.in(t, name, "cat /root/plan /root/new"); got != "second\nnew" {
		t.Errorf("the source sees %q, want its own second state", got)
	}
	r.cleanLayers(t, all...)

	// Back in place. What was uncommitted stays reachable.
	r.probe(t, name, "set", "third")
	r.in(t, name, "echo third > /root/plan")
	r.ok(t, "checkout", name, c1.ID)
	after := r.inspect(t, name)
	if after.IP != before.IP || after.Name != before.Name || fmt.Sprint(after.Ports) != fmt.Sprint(before.Ports) {
		t.Errorf("checkout changed name, address or ports:\nbefore %+v\nafter  %+v", before, after)
	}
	if got := get(t, port); got != "served\n" {
		t.Errorf("through the forwarded port after checkout: got %q", got)
	}
	if after.Head.Commit != c1.ID {
		t.Errorf("HEAD after checkout: got %s want %s", after.Head.Commit, c1.ID)
	}
	if got := r.probe(t, name, "get"); strings.Join(got, " ") != strings.Join(first, " ") {
		t.Errorf("after checkout the probe remembers %v, want %v", got, first)
	}
	if got := r.in(t, name, "cat /root/plan"); got != "first" {
		t.Errorf("after checkout the disk says %q, want first", got)
	}
	saved := query[commitInfo](t, r, "show", name+"@{1}")
	if len(saved.Parents) != 1 || saved.Parents[0] != c2.ID {
		t.Errorf("%s@{1} has parents %v, want the second commit %s", name, saved.Parents, c2.ID)
	}
	back := r.fork(t, 1, name+"@{1}")[0]
	if got := r.in(t, back.Name, "cat /root/plan") + " " + r.probe(t, back.Name, "get")[0]; got != "third third" {
		t.Errorf("the state before checkout came back as %q, want third third", got)
	}

	// A commit of a restored machine, and its history.
	r.probe(t, name, "set", "fourth")
	c4 := r.commit(t, name, "fourth state")
	if len(c4.Parents) != 1 || c4.Parents[0] != c1.ID {
		t.Errorf("parents of a commit after checkout: got %v want [%s]", c4.Parents, c1.ID)
	}
	log := query[[]commitInfo](t, r, "log", name)
	if len(log) != 2 || log[0].ID != c4.ID || log[1].ID != c1.ID {
		t.Errorf("log of %s: got %d commits, want the fourth and the first: %+v", name, len(log), log)
	}

	r.remove(t, append(all, name, back.Name)...)
	r.ok(t, "fsck")
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		t.Errorf("the forwarded port is not free after rm: %v", err)
	} else {
		l.Close()
	}
}

// freePort is a port of the loopback address nobody listens on at the moment.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func get(t *testing.T, port int) string {
	t.Helper()
	client := http.Client{Timeout: within(10 * time.Second)}
	defer client.CloseIdleConnections()
	res, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/index.html", port))
	if err != nil {
		t.Errorf("forwarded port: %v", err)
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("forwarded port: %v", err)
	}
	return string(body)
}

// TestLifeCycle wants every verb of the life cycle to be idempotent, and the
// disk to outlive a stop.
func TestLifeCycle(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	r.in(t, name, "echo kept > /root/file")
	state := func(want string) {
		t.Helper()
		if got := r.inspect(t, name).State; got != want {
			t.Errorf("state: got %s want %s", got, want)
		}
	}
	for range 2 {
		r.ok(t, "pause", name)
		state("paused")
	}
	for range 2 {
		r.ok(t, "resume", name)
		state("running")
	}
	nonce := r.probe(t, name, "get")[1]
	for range 2 {
		r.ok(t, "stop", name)
		state("stopped")
	}
	r.fails(t, 1, []string{name, "hint"}, "exec", name, "--", "true")
	for range 2 {
		r.ok(t, "start", name)
		state("running")
	}
	if got := r.in(t, name, "cat /root/file"); got != "kept" {
		t.Errorf("after stop and start the file says %q", got)
	}
	if got := r.probe(t, name, "get")[1]; got == nonce {
		t.Error("a cold start found the old process alive")
	}
	r.remove(t, name)
	r.fails(t, 3, []string{name}, "inspect", name)
}

// TestExec is what a script relies on.
func TestExec(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t, "-e", "FROM_RUN=yes")
	defer r.remove(t, name)
	tests := []struct {
		name           string
		flags          []string
		command        []string
		stdin          string
		stdout, stderr string
		code           int
	}{
		{name: "streams apart", command: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, stdout: "out\n", stderr: "err\n", code: 3},
		{name: "stdin to its end", flags: []string{"-i"}, command: []string{"wc", "-c"}, stdin: strings.Repeat("x", 100000), stdout: "100000\n"},
		{name: "no stdin unless asked", command: []string{"wc", "-c"}, stdin: "lost", stdout: "0\n"},
		{name: "binary bytes", flags: []string{"-i"}, command: []string{"cat"}, stdin: "\x00\x01\xff\r\n\x00", stdout: "\x00\x01\xff\r\n\x00"},
		{name: "no shell between", command: []string{"echo", "$HOME", "a  b", "*"}, stdout: "$HOME a  b *\n"},
		{name: "environment", flags: []string{"-e", "ADDED=1"}, command: []string{"sh", "-c", "echo $FROM_RUN $ADDED $PATH"}, stdout: "yes 1 /bin\n"},
		{name: "working directory", flags: []string{"-w", "/tmp"}, command: []string{"pwd"}, stdout: "/tmp\n"},
		{name: "image's working directory", command: []string{"pwd"}, stdout: "/root\n"},
		{name: "user by name", flags: []string{"-u", "nobody"}, command: []string{"id", "-u"}, stdout: "65534\n"},
		{name: "user by number", flags: []string{"-u", "12:34"}, command: []string{"sh", "-c", "id -u; id -g"}, stdout: "12\n34\n"},
		{name: "not found", command: []string{"/no/such"}, code: 127},
		{name: "not executable", command: []string{"/etc/passwd"}, code: 126},
		{name: "killed", command: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		{name: "timeout", flags: []string{"--timeout", "500ms"}, command: []string{"sleep", "60"}, code: 124},
		{name: "much output", command: []string{"sh", "-c", "yes 0123456789 | head -n 200000 | wc -c; yes | head -c 3000000 | tail -c 2"}, stdout: "2200000\ny\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"exec"}, tt.flags...)
			args = append(append(args, name, "--"), tt.command...)
			res := r.tryInput(t, []byte(tt.stdin), args...)
			if res.code != tt.code {
				t.Errorf("want exit code %d: %s", tt.code, res)
			}
			if res.stdout != tt.stdout {
				t.Errorf("stdout: got %q want %q", res.stdout, tt.stdout)
			}
			if tt.stderr != "" && res.stderr != tt.stderr {
				t.Errorf("stderr: got %q want %q", res.stderr, tt.stderr)
			}
		})
	}
}

// TestCopy moves files both ways and wants them back as they were.
func TestCopy(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	src, dst := t.TempDir(), t.TempDir()
	files := map[string]os.FileMode{"plain": 0o644, "run.sh": 0o755, "secret": 0o600}
	for f, mode := range files {
		if err := os.WriteFile(filepath.Join(src, f), []byte("content of "+f), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("plain", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	r.ok(t, "cp", filepath.Join(src, "run.sh"), name+":/root/renamed.sh")
	if got := r.in(t, name, "stat -c '%a %u %s' /root/renamed.sh"); got != "755 0 17" {
		t.Errorf("a file copied in: mode, owner and size %q", got)
	}
	r.ok(t, "cp", src, name+":/root/tree")
	r.ok(t, "cp", name+":/root/tree", filepath.Join(dst, "tree"))
	for f, mode := range files {
		path := filepath.Join(dst, "tree", f)
		data, err := os.ReadFile(path)
		if err != nil || string(data) != "content of "+f {
			t.Errorf("%s came back as %q, %v", f, data, err)
		}
		if st, err := os.Stat(path); err == nil && st.Mode().Perm() != mode {
			t.Errorf("%s came back with mode %o, want %o", f, st.Mode().Perm(), mode)
		}
	}
	if got, err := os.Readlink(filepath.Join(dst, "tree", "link")); err != nil || got != "plain" {
		t.Errorf("link came back as %q, %v", got, err)
	}
	r.fails(t, 3, []string{"/no/such"}, "cp", name+":/no/such", dst)
}

// TestSixteenForks is hazard 3: copies of one commit collide in nothing.
func TestSixteenForks(t *testing.T) {
	r := apart(t)
	source := r.runSmall(t)
	want := r.probe(t, source, "set", "seed")
	c := r.commit(t, source, "seed")
	start := time.Now()
	forks := r.fork(t, 16, c.ID)
	t.Logf("16 forks in %.2f s; last ready after %.0f ms", time.Since(start).Seconds(), forks[len(forks)-1].ReadyMS)
	names, ips := []string{source}, map[string]string{r.inspect(t, source).IP: source}
	for _, f := range forks {
		names = append(names, f.Name)
		if other, twice := ips[f.IP]; twice {
			t.Errorf("%s and %s have one address, %s", f.Name, other, f.IP)
		}
		ips[f.IP] = f.Name
	}
	// They stay up, all of them, and each has its own memory.
	for round := range 4 {
		var wg sync.WaitGroup
		limit := make(chan struct{}, 4)
		for i, name := range names {
			wg.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				res := r.try(t, "exec", name, "--", "probe", "set", strconv.Itoa(i))
				if f := strings.Fields(res.stdout); res.code != 0 || len(f) != 3 || f[0] != strconv.Itoa(i) || f[1] != want[1] {
					t.Errorf("round %d: %s", round, res)
				}
			})
		}
		wg.Wait()
		time.Sleep(3 * time.Second)
	}
	for i, name := range names {
		if got := r.probe(t, name, "get")[0]; got != strconv.Itoa(i) {
			t.Errorf("%s remembers %s, not its own %d", name, got, i)
		}
	}
	r.remove(t, names...)
}
