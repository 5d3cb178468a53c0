package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestExecCodes(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	plain := write("plain", "#!/bin/sh\nexit 0\n", 0o644)
	garbage := write("garbage", "\x00\x01\x02", 0o755)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	script := write("script", "#!/bin/sh\nexit 7\n", 0o755)

	tests := []struct {
		name  string
		req   proto.ExecRequest
		want  proto.ExitStatus
		error string // part of it
	}{
		{"zero", sh("exit 0"), proto.ExitStatus{}, ""},
		{"one", sh("exit 1"), proto.ExitStatus{Code: 1}, ""},
		{"255", sh("exit 255"), proto.ExitStatus{Code: 255}, ""},
		{"not found", proto.ExecRequest{Args: []string{"no-such-command-here"}}, proto.ExitStatus{Code: 127}, "command not found"},
		{"no such path", proto.ExecRequest{Args: []string{"/no/such/file"}}, proto.ExitStatus{Code: 127}, "no such file"},
		{"not executable", proto.ExecRequest{Args: []string{plain}}, proto.ExitStatus{Code: 126}, "permission denied"},
		{"a directory", proto.ExecRequest{Args: []string{dir}}, proto.ExitStatus{Code: 126}, "is a directory"},
		{"not a program", proto.ExecRequest{Args: []string{garbage}}, proto.ExitStatus{Code: 126}, "exec format error"},
		{"interpreter missing", proto.ExecRequest{Args: []string{orphan}}, proto.ExitStatus{Code: 127}, "interpreter"},
		{"relative to the directory", proto.ExecRequest{Args: []string{"./script"}, WorkingDir: dir}, proto.ExitStatus{Code: 7}, ""},
		{"PATH of the request", proto.ExecRequest{Args: []string{"script"}, Env: []string{"PATH=" + dir + ":/bin"}}, proto.ExitStatus{Code: 7}, ""},
		{"not executable in PATH", proto.ExecRequest{Args: []string{"plain"}, Env: []string{"PATH=" + dir}}, proto.ExitStatus{Code: 126}, "permission denied"},
		{"absolute script", proto.ExecRequest{Args: []string{script}}, proto.ExitStatus{Code: 7}, ""},
		{"killed", sh("kill -KILL $$"), proto.ExitStatus{Code: 137, Signal: 9}, ""},
		{"terminated", sh("kill -TERM $$"), proto.ExitStatus{Code: 143, Signal: 15}, ""},
		{"time limit", proto.ExecRequest{Args: []string{"sleep", "60"}, TimeoutMS: 50}, proto.ExitStatus{Code: 124, Signal: 15}, "timed out after 50ms"},
		{"within the limit", proto.ExecRequest{Args: []string{"true"}, TimeoutMS: 60000}, proto.ExitStatus{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, got := run(t, c, tt.req, "")
			if !strings.Contains(got.Error, tt.error) || (tt.error == "") != (got.Error == "") {
				t.Errorf("error %q, want something with %q", got.Error, tt.error)
			}
			got.Error = ""
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestExecRefuses(t *testing.T) {
	c, _ := startHere(t, guest.Options{})
	tests := []struct {
		name string
		req  proto.ExecRequest
		want []string
	}{
		{"nothing to run", proto.ExecRequest{}, []string{"no command"}},
		{"several things at once", proto.ExecRequest{Args: []string{"a\x00b"}, Env: []string{"NOVALUE"}}, []string{"NUL", `"NOVALUE"`}},
		{"unknown user", proto.ExecRequest{Args: []string{"true"}, User: "no-such-user"}, []string{"no such user"}},
		{"unknown group", proto.ExecRequest{Args: []string{"true"}, User: "0:no-such-group"}, []string{"no such group"}},
		{"missing directory", proto.ExecRequest{Args: []string{"true"}, WorkingDir: "/no/such/dir"}, []string{"/no/such/dir", "no such file"}},
		{"a file as directory", proto.ExecRequest{Args: []string{"true"}, WorkingDir: "/etc/passwd"}, []string{"not a directory"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Exec(testContext(t), tt.req, agent.IO{})
			var remote *agent.RemoteError
			if !errors.As(err, &remote) || remote.Code != proto.CodeInvalid {
				t.Fatalf("got %v, want an invalid request", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(remote.Message, w) {
					t.Errorf("message %q does not say %q", remote.Message, w)
				}
			}
		})
	}
}

func TestExecStreams(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{Env: []string{"A=image", "B=image"}, DefaultDir: "/usr"})

	t.Run("stdout and stderr apart", func(t *testing.T) {
		o, e, _ := run(t, c, sh("echo out; echo err >&2"), "")
		if o != "out\n" || e != "err\n" {
			t.Errorf("got %q and %q", o, e)
		}
	})
	t.Run("no stdin", func(t *testing.T) {
		if o, _, _ := run(t, c, sh("readlink /proc/self/fd/0"), ""); o != "/dev/null\n" {
			t.Errorf("stdin is %q", o)
		}
	})
	t.Run("stdin and its end", func(t *testing.T) {
		req := proto.ExecRequest{Args: []string{"cat"}, Stdin: true}
		if o, _, st := run(t, c, req, "some\ntext"); o != "some\ntext" || st.Code != 0 {
			t.Errorf("got %q, %+v", o, st)
		}
		if o, _, st := run(t, c, req, ""); o != "" || st.Code != 0 {
			t.Errorf("empty stdin: got %q, %+v", o, st)
		}
	})
	t.Run("every byte there and back", func(t *testing.T) {
		data := make([]byte, 3<<20+17)
		rand.Read(data)
		for i := range 256 {
			data[i] = byte(i)
		}
		if o, _, _ := run(t, c, proto.ExecRequest{Args: []string{"cat"}, Stdin: true}, string(data)); o != string(data) {
			t.Error("bytes changed on the way")
		}
	})
	t.Run("stdin that is not read", func(t *testing.T) {
		// More than the window and the pipe hold.
		big := strings.Repeat("x", 4*proto.StdinWindow)
		req := sh("exec true")
		req.Stdin = true
		if _, _, st := run(t, c, req, big); st.Code != 0 {
			t.Errorf("got %+v", st)
		}
		req = sh("exec 0<&-; sleep 0.2; echo done")
		req.Stdin = true
		if o, _, _ := run(t, c, req, big); o != "done\n" {
			t.Errorf("stdin closed by the process: got %q", o)
		}
	})
	t.Run("environment", func(t *testing.T) {
		req := sh("echo $A $B $C $HOME $USER; pwd")
		req.Env = []string{"B=request", "C=request"}
		o, _, _ := run(t, c, req, "")
		if want := "image request request /root root\n/usr\n"; os.Geteuid() == 0 && o != want {
			t.Errorf("got %q, want %q", o, want)
		}
		req = sh("echo $HOME; pwd")
		req.Env, req.WorkingDir = []string{"HOME=/elsewhere"}, "bin"
		if o, _, _ := run(t, c, req, ""); o != "/elsewhere\n"+evalLinks(t, "/usr/bin")+"\n" {
			t.Errorf("got %q", o)
		}
	})
	t.Run("arguments that are not UTF-8", func(t *testing.T) {
		o, _, _ := run(t, c, proto.ExecRequest{Args: []string{"printf", "%s|%s", "\xff\xfe", "ü\U0001F600\"\\\x01"}}, "")
		if want := "\xff\xfe|ü\U0001F600\"\\\x01"; o != want {
			t.Errorf("got %q, want %q", o, want)
		}
		o, _, _ = run(t, c, proto.ExecRequest{Args: []string{"sh", "-c", "printf %s $V"}, Env: []string{"V=\xe9"}}, "")
		if o != "\xe9" {
			t.Errorf("environment: got %q", o)
		}
	})
	t.Run("long arguments", func(t *testing.T) {
		long := strings.Repeat("\n", 100<<10) // two bytes each in JSON
		if o, _, _ := run(t, c, proto.ExecRequest{Args: []string{"printf", "%s", long}}, ""); o != long {
			t.Errorf("got %d bytes, want %d", len(o), len(long))
		}
		_, _, st := run(t, c, proto.ExecRequest{Args: []string{"true", strings.Repeat("x", 3<<20)}}, "")
		if st.Code != 126 || !strings.Contains(st.Error, "too long") {
			t.Errorf("got %+v", st)
		}
	})
	t.Run("pid", func(t *testing.T) {
		var out bytes.Buffer
		pid := 0
		if _, err := c.Exec(testContext(t), sh("echo $$"), agent.IO{Stdout: &out, Started: func(p int) { pid = p }}); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(out.String()); got != strconv.Itoa(pid) {
			t.Errorf("Started said %d, the process %s", pid, got)
		}
	})
}

func evalLinks(t *testing.T, p string) string {
	p, err := filepath.EvalSymlinks(p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExecUsers(t *testing.T) {
	testlane.Need(t, testlane.Root)
	c, _ := startHere(t, guest.Options{DefaultUser: "daemon"})
	tests := []struct{ user, want string }{
		{"", "1 1 1 daemon /usr/sbin"},
		{"root", "0 0 0 root /root"},
		{"0", "0 0 0 root /root"},
		{"daemon", "1 1 1 daemon /usr/sbin"},
		{"1", "1 1 1 daemon /usr/sbin"},
		{"daemon:0", "1 0 0 daemon /usr/sbin"},
		{"12345", "12345 0 0  /"},
		{"12345:54321", "12345 54321 54321  /"},
		{"nobody:daemon", "65534 1 1 nobody /nonexistent"},
	}
	for _, tt := range tests {
		t.Run(tt.user, func(t *testing.T) {
			req := sh("echo $(id -u) $(id -g) $(id -G) \"$USER\" $HOME")
			req.User = tt.user
			o, e, _ := run(t, c, req, "")
			if strings.TrimSpace(o) != tt.want {
				t.Errorf("got %q, want %q (%s)", o, tt.want, e)
			}
		})
	}
	t.Run("own descriptors", func(t *testing.T) {
		req := sh("echo again > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin")
		req.User, req.Stdin = "12345", true
		if o, e, st := run(t, c, req, "in"); o != "again\nin" || e != "err\n" {
			t.Errorf("got %q, %q, %+v", o, e, st)
		}
	})
}

func TestExecTerminal(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})

	t.Run("is one", func(t *testing.T) {
		req := sh("tty; stty size; echo $TERM; : </dev/tty && echo controlling; echo err >&2")
		req.TTY, req.Rows, req.Cols = true, 33, 77
		o, e, st := run(t, c, req, "")
		lines := strings.Split(strings.ReplaceAll(o, "\r\n", "\n"), "\n")
		if !strings.HasPrefix(lines[0], "/dev/pts/") {
			t.Errorf("tty says %q", lines[0])
		}
		if d := cmp.Diff([]string{"33 77", "xterm", "controlling", "err", ""}, lines[1:]); d != "" {
			t.Error(d)
		}
		if e != "" || st.Code != 0 {
			t.Errorf("stderr %q, %+v", e, st)
		}
	})

	t.Run("resize, interrupt, end of input", func(t *testing.T) {
		pr, pw := io.Pipe()
		out := newWatched()
		resize := make(chan agent.Size)
		req := sh(`trap 'stty size' WINCH; trap 'echo interrupted; go=1' INT; echo ready; until [ "$go" ]; do sleep 0.02; done; sed -u 's/^/got /'; echo ended`)
		req.TTY = true
		done := make(chan error, 1)
		go func() {
			_, err := c.Exec(testContext(t), req, agent.IO{Stdin: pr, Stdout: out, Resize: resize})
			done <- err
		}()
		out.wait(t, "ready")
		resize <- agent.Size{Rows: 12, Cols: 34}
		out.wait(t, "12 34")
		io.WriteString(pw, "\x03")
		out.wait(t, "interrupted")
		io.WriteString(pw, "hello\n")
		out.wait(t, "got hello")
		pw.Close()
		out.wait(t, "ended")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})

	t.Run("background job", func(t *testing.T) {
		req := sh("nohup sleep 60 >/dev/null 2>&1 & echo $!")
		req.TTY = true
		o, _, st := run(t, c, req, "")
		pid, _ := strconv.Atoi(strings.TrimSpace(o))
		if st.Code != 0 || pid == 0 || syscall.Kill(pid, 0) != nil {
			t.Errorf("got %q, %+v, or the job is gone", o, st)
		}
		syscall.Kill(pid, syscall.SIGKILL)
	})

	t.Run("large output", func(t *testing.T) {
		req := sh("stty -opost; head -c 1000000 /dev/zero; echo end")
		req.TTY = true
		if o, _, _ := run(t, c, req, ""); len(o) != 1000004 || !strings.HasSuffix(o, "end\n") {
			t.Errorf("got %d bytes", len(o))
		}
	})
}

// watched is an output that can be waited for.
type watched struct {
	mu  sync.Mutex
	buf bytes.Buffer
	at  int
}

func newWatched() *watched { return new(watched) }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// wait waits for text after what was waited for before.
func (w *watched) wait(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		i := strings.Index(w.buf.String()[w.at:], text)
		if i >= 0 {
			w.at += i + len(text)
		}
		w.mu.Unlock()
		if i >= 0 {
			return
		}
	}
	t.Fatalf("no %q in output %q", text, w.buf.String())
}

func TestExecSignals(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	for _, stdin := range []bool{false, true} {
		t.Run(fmt.Sprintf("stdin %v", stdin), func(t *testing.T) {
			req := sh(`trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
			out, signals := newWatched(), make(chan syscall.Signal)
			sio := agent.IO{Stdout: out, Signals: signals}
			if stdin {
				// The process never reads it: signals must not wait behind it.
				req.Stdin, sio.Stdin = true, strings.NewReader(strings.Repeat("x", 4*proto.StdinWindow))
			}
			end := make(chan proto.ExitStatus, 1)
			go func() {
				st, err := c.Exec(testContext(t), req, sio)
				if err != nil {
					t.Error(err)
				}
				end <- st
			}()
			out.wait(t, "ready")
			signals <- syscall.SIGUSR1
			out.wait(t, "usr1")
			signals <- syscall.SIGTERM
			out.wait(t, "term")
			if st := <-end; st.Code != 9 {
				t.Errorf("got %+v", st)
			}
		})
	}
}

// paced is a reader's end that takes a while now and then.
type paced struct {
	hash  hash.Hash
	n     int64
	stall time.Duration
	every int64
}

func (p *paced) Write(b []byte) (int, error) {
	if (p.n+int64(len(b)))/p.every != p.n/p.every {
		time.Sleep(p.stall)
	}
	p.n += int64(len(b))
	p.hash.Write(b)
	return len(b), nil
}

// TestSlowReader has 1 GiB go to a reader that pauses, and watches the memory
// of both sides.
func TestSlowReader(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 1 GiB")
	}
	p := startProcess(t)
	const size = 1 << 30
	block := make([]byte, 8<<20)
	rand.Read(block)
	file := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	guestBefore, hereBefore := resident(t, p.pid), resident(t, os.Getpid())
	guestPeak, herePeak := 0, 0
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
				guestPeak, herePeak = max(guestPeak, resident(t, p.pid)), max(herePeak, resident(t, os.Getpid()))
			}
		}
	})
	out := &paced{hash: crc32.New(crc32.MakeTable(crc32.Castagnoli)), stall: 20 * time.Millisecond, every: 16 << 20}
	start := time.Now()
	st, err := p.Exec(testContext(t), sh("for i in $(seq 128); do cat "+file+"; done"), agent.IO{Stdout: out})
	elapsed := time.Since(start)
	close(done)
	watch.Wait()
	if err != nil || st.Code != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	want := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for range size / len(block) {
		want.Write(block)
	}
	if out.n != size || !bytes.Equal(out.hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("got %d bytes, or other ones than were sent", out.n)
	}
	t.Logf("1 GiB in %v; agent %d → %d KiB, client %d → %d KiB", elapsed.Round(time.Millisecond), guestBefore, guestPeak, hereBefore, herePeak)
	const limit = 8 << 10
	if guestPeak-guestBefore > limit || herePeak-hereBefore > limit {
		t.Errorf("memory grew by %d KiB in the agent and %d KiB here, allowed %d", guestPeak-guestBefore, herePeak-hereBefore, limit)
	}
}

// TestStoppedReader leaves an output unread: the process must block, the agent
// must not buffer, and both must go on later.
func TestStoppedReader(t *testing.T) {
	p := startProcess(t)
	before := resident(t, p.pid)
	stop := make(chan struct{})
	first := true
	var n int64
	out := writerFunc(func(b []byte) (int, error) {
		if first {
			first = false
			<-stop
		}
		n += int64(len(b))
		return len(b), nil
	})
	end := make(chan error, 1)
	go func() {
		_, err := p.Exec(testContext(t), sh("head -c 100000000 /dev/zero"), agent.IO{Stdout: out})
		end <- err
	}()
	time.Sleep(500 * time.Millisecond)
	if grown := resident(t, p.pid) - before; grown > 8<<10 {
		t.Errorf("agent grew by %d KiB", grown)
	}
	close(stop)
	if err := <-end; err != nil || n != 100000000 {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// resident is a process's resident set without file pages, in KiB.
func resident(t testing.TB, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestManyExecs: 1000 execs leave nothing behind, on either side.
func TestManyExecs(t *testing.T) {
	p := startProcess(t)
	one := func(i int) {
		req := sh("cat >/dev/null; echo $$")
		req.Stdin = true
		req.TTY = i%10 == 0
		o, _, st := run(t, p.Client, req, "x\n")
		if st.Code != 0 || o == "" {
			t.Fatalf("exec %d: %q, %+v", i, o, st)
		}
	}
	for i := range 20 {
		one(i)
	}
	p.CloseIdle()
	noLeak(t)
	time.Sleep(50 * time.Millisecond)
	files, threads, memory := openFiles(t, p.pid), threadCount(t, p.pid), resident(t, p.pid)
	start := time.Now()
	for i := range 1000 {
		one(i)
	}
	t.Logf("1000 execs of a shell with cat in %v", time.Since(start).Round(time.Millisecond))
	p.CloseIdle()
	eventually(t, func() error {
		if n := openFiles(t, p.pid); n > files {
			return fmt.Errorf("agent has %d open files, %d before", n, files)
		}
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("agent has children %v", kids)
		}
		return nil
	})
	if n := threadCount(t, p.pid); n > threads+4 {
		t.Errorf("agent has %d threads, %d before", n, threads)
	}
	if n := resident(t, p.pid); n > memory+24<<10 { // a lost 64 KiB buffer each would be 64 MiB
		t.Errorf("agent has %d KiB, %d before", n, memory)
	}
}

func threadCount(t testing.TB, pid int) int {
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// children lists a process's children, zombies too.
func children(t testing.TB, pid int) (kids []string) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		kids = append(kids, strings.Fields(string(b))...)
	}
	return kids
}

func TestManyAtOnce(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			var out bytes.Buffer
			req := proto.ExecRequest{Args: []string{"cat"}, Stdin: true}
			in := strings.Repeat(strconv.Itoa(i)+" ", 50000)
			if _, err := c.Exec(testContext(t), req, agent.IO{Stdin: strings.NewReader(in), Stdout: &out}); err != nil || out.String() != in {
				t.Errorf("exec %d: %d of %d bytes, %v", i, out.Len(), len(in), err)
			}
		})
	}
	group.Wait()
}

func TestGrandchildren(t *testing.T) {
	p := startProcess(t)
	t.Run("that hold stdout do not keep the exec", func(t *testing.T) {
		start := time.Now()
		o, _, st := run(t, p.Client, sh("echo first; sleep 60 & echo $!"), "")
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("took %v", d)
		}
		f := strings.Fields(o)
		if st.Code != 0 || len(f) != 2 || f[0] != "first" {
			t.Fatalf("got %q, %+v", o, st)
		}
		pid, _ := strconv.Atoi(f[1])
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("the grandchild did not survive: %v", err)
		}
		syscall.Kill(pid, syscall.SIGKILL)
	})
	t.Run("may go on writing", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "mark")
		run(t, p.Client, sh("(sleep 0.4; for i in 1 2 3; do seq 20000; done; echo done > "+mark+") & true"), "")
		eventually(t, func() error { _, err := os.Stat(mark); return err })
	})
	t.Run("are heard for a moment", func(t *testing.T) {
		eventually(t, func() error { // a busy host may make it late
			if o, _, _ := run(t, p.Client, sh("(sleep 0.02; echo late) & echo early"), ""); o != "early\nlate\n" {
				return fmt.Errorf("got %q", o)
			}
			return nil
		})
	})
	t.Run("do not cut off a slow reader", func(t *testing.T) {
		// The pipe is full when the process ends, its reader sleeps longer than
		// the grace, and someone keeps the pipe open.
		first := true
		var out bytes.Buffer
		slow := writerFunc(func(b []byte) (int, error) {
			if first {
				first = false
				time.Sleep(700 * time.Millisecond)
			}
			return out.Write(b)
		})
		st, err := p.Exec(testContext(t), sh("sleep 60 & head -c 200000 /dev/zero | tr '\\0' x; kill_me=$!; echo END $kill_me"), agent.IO{Stdout: slow})
		if err != nil {
			t.Fatal(err)
		}
		text, pid, _ := strings.Cut(out.String(), "END ")
		if len(text) != 200000 || st.Code != 0 {
			t.Errorf("got %d bytes, %+v", len(text), st)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(pid))
		syscall.Kill(n, syscall.SIGKILL)
	})
	eventually(t, func() error {
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("children are left: %v", kids)
		}
		return nil
	})
}

func TestTimeoutKillsAll(t *testing.T) {
	p := startProcess(t)
	dir := t.TempDir()
	start := time.Now()
	req := sh(`trap '' TERM; (trap '' TERM; echo $$ >` + dir + `/parent; sleep 61) & sleep 60; sleep 60`)
	req.TimeoutMS = 100
	_, _, st := run(t, p.Client, req, "")
	if st.Code != 124 || st.Signal != 9 {
		t.Errorf("got %+v", st)
	}
	if d := time.Since(start); d < time.Second || d > 20*time.Second {
		t.Errorf("took %v, want the limit and a second of grace", d)
	}
	eventually(t, func() error {
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("children are left: %v", kids)
		}
		return nil
	})
}

// startLong starts a process that notes its pid and returns it once it runs.
func startLong(t *testing.T, c *agent.Client, req proto.ExecRequest) (pid int, leave context.CancelFunc, end <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	started, done := make(chan int, 1), make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, req, agent.IO{Started: func(pid int) { started <- pid }})
		done <- err
	}()
	select {
	case pid := <-started:
		return pid, cancel, done
	case err := <-done:
		t.Fatalf("exec ended: %v", err)
	}
	panic("unreachable")
}

func isRunning(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestClientLoss(t *testing.T) {
	t.Run("kills the session", func(t *testing.T) {
		p := startProcess(t)
		for _, tty := range []bool{false, true} {
			// Job control puts the job into a group of its own; HUP is ignored.
			req := sh("trap '' HUP; set -m; sleep 60 & sleep 61; sleep 62")
			req.TTY = tty
			pid, leave, end := startLong(t, p.Client, req)
			eventually(t, func() error {
				if n := sessionSize(t, pid); n < 3 {
					return fmt.Errorf("%d processes in session", n)
				}
				return nil
			})
			leave()
			if err := <-end; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			eventually(t, func() error {
				if n := sessionSize(t, pid); n > 0 {
					return fmt.Errorf("tty %v: %d processes are left", tty, n)
				}
				return nil
			})
		}
	})
	t.Run("with output under way", func(t *testing.T) {
		p := startProcess(t)
		ctx, cancel := context.WithCancel(testContext(t))
		pid := 0
		_, err := p.Exec(ctx, sh("cat /dev/zero"), agent.IO{
			Started: func(p int) { pid = p },
			Stdout:  writerFunc(func(b []byte) (int, error) { cancel(); time.Sleep(50 * time.Millisecond); return len(b), nil }),
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error {
			if sessionSize(t, pid) > 0 {
				return errors.New("process is left")
			}
			return nil
		})
	})
	t.Run("detached goes on", func(t *testing.T) {
		p := startProcess(t)
		mark := filepath.Join(t.TempDir(), "mark")
		req := sh("cat; seq 100000; echo gone on > " + mark)
		req.Detach, req.Stdin = true, true
		pr, pw := io.Pipe()
		ctx, cancel := context.WithCancel(testContext(t))
		_, err := p.Exec(ctx, req, agent.IO{Stdin: pr, Started: func(int) { cancel() }})
		pw.Close()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error { _, err := os.Stat(mark); return err })
	})
	t.Run("output that cannot be written", func(t *testing.T) {
		p := startProcess(t)
		pid := 0
		_, err := p.Exec(testContext(t), sh("yes"), agent.IO{
			Started: func(p int) { pid = p },
			Stdout:  writerFunc(func([]byte) (int, error) { return 0, syscall.EPIPE }),
		})
		if !errors.Is(err, syscall.EPIPE) || errors.Is(err, agent.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() error {
			if sessionSize(t, pid) > 0 {
				return errors.New("process is left")
			}
			return nil
		})
	})
}

// sessionSize counts the living processes of a session.
func sessionSize(t *testing.T, sid int) (n int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		s := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if s[0] != "Z" && s[3] == strconv.Itoa(sid) {
			n++
		}
	}
	return n
}

func TestClosedClient(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	_, _, end := startLong(t, c, sh("sleep 60"))
	c.Close()
	if err := <-end; !errors.Is(err, agent.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Status(testContext(t)); !errors.Is(err, agent.ErrClosed) {
		t.Errorf("got %v", err)
	}
	c.Close()
}
