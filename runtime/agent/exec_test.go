package agent_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
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
