package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// server is a `sietch serve` of a data directory.
type server struct {
	url  string   // the first it listens on
	all  []string // every one
	cmd  *exec.Cmd
	log  *bytes.Buffer
	done chan error
}

// serve starts a server on a free port; it is ended with the test.
func (r *repo) serve(t testing.TB, flags ...string) *server {
	t.Helper()
	s := &server{log: &bytes.Buffer{}, done: make(chan error, 1)}
	args := append([]string{"--json", "--log-level", "info", "serve", "--listen", "127.0.0.1:0"}, flags...)
	s.cmd = r.command(context.Background(), args...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t, syscall.SIGTERM) })
	var said struct{ Listen []string }
	began := make(chan error, 1)
	go func() {
		began <- json.NewDecoder(out).Decode(&said)
		io.Copy(io.Discard, out)
		s.done <- s.cmd.Wait()
	}()
	select {
	case err = <-began:
	case <-time.After(within(30 * time.Second)):
		err = fmt.Errorf("it says nothing")
	}
	if err != nil || len(said.Listen) == 0 {
		s.stop(t, syscall.SIGKILL)
		t.Fatalf("start of the server: %v\n%s", err, s.log)
	}
	s.url, s.all = said.Listen[0], said.Listen
	return s
}

// stop ends the server by a signal. Idempotent.
func (s *server) stop(t testing.TB, sig syscall.Signal) {
	if s.cmd.ProcessState != nil || s.done == nil {
		return
	}
	s.cmd.Process.Signal(sig)
	select {
	case err := <-s.done:
		if sig == syscall.SIGTERM && err != nil {
			t.Errorf("the server ended with %v after %s:\n%s", err, sig, s.log)
		}
	case <-time.After(within(40 * time.Second)):
		s.cmd.Process.Kill()
		t.Errorf("the server did not end after %s", sig)
	}
	s.done = nil
}

// ask is a JSON request.
func (s *server) ask(method, path, body string) (status int, answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	return a.StatusCode, string(data), err
}

// call is ask that wants the status.
func (s *server) call(t testing.TB, status int, method, path, body string) string {
	t.Helper()
	got, answer, err := s.ask(method, path, body)
	if err != nil || got != status {
		t.Fatalf("%s %s: got %d %s, %v, want %d", method, path, got, answer, err, status)
	}
	return answer
}

const smallRun = `{"from":"small","name":"%s","memory_bytes":268435456,"disk_bytes":268435456}`

// TestDocumentedAPI runs the blocks of docs/api.md against a server.
func TestDocumentedAPI(t *testing.T) {
	r := apart(t)
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllSubmatch(page, -1)
	if len(blocks) < 10 {
		t.Fatalf("only %d blocks found: does the pattern still fit?", len(blocks))
	}
	s := r.serve(t)
	t.Cleanup(func() {
		for _, name := range []string{"box", "other", "try-1", "try-2"} {
			r.try(t, "rm", "-f", name)
		}
		r.try(t, "tag", "-d", "v1")
		r.try(t, "tag", "-d", "s1")
	})
	for _, b := range blocks {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", string(b[1]))
		cmd.Env = append(os.Environ(), "API="+s.url, "no_proxy=*")
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("docs/api.md:\n%s\nended with %v:\n%s\nserver:\n%s", b[1], err, out, s.log)
		}
	}
}

// TestArrakisClients lets the published SDK do what its users rely on.
func TestArrakisClients(t *testing.T) {
	r := apart(t)
	var s *server
	for _, version := range []string{"2.0.0", "1.2.2"} {
		t.Run(version, func(t *testing.T) {
			bin := pythonWith(t, t.TempDir(), testlane.PyPI, "py-arrakis=="+version)
			if s == nil {
				s = r.serve(t, "--default-image", "small")
			}
			prefix := fresh("sdk")
			t.Cleanup(func() {
				r.try(t, "rm", "-f", prefix+"-one", prefix+"-two")
				r.try(t, "tag", "-d", prefix+"-state")
			})
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, filepath.Join(bin, "python"), "testdata/arrakis.py", s.url, prefix).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "fine") {
				t.Errorf("%v:\n%s\nserver:\n%s", err, out, s.log)
			}
			s.stop(t, syscall.SIGTERM)
			s = nil
		})
	}
}

// TestSandboxesOutliveTheServer kills it in the middle of a call.
func TestSandboxesOutliveTheServer(t *testing.T) {
	r := apart(t)
	s := r.serve(t)
	name := fresh("box")
	t.Cleanup(func() { r.try(t, "rm", "-f", name) })
	s.call(t, 201, "POST", "/v1/sandboxes", fmt.Sprintf(smallRun, name))
	id := s.call(t, 201, "POST", "/v1/sandboxes/"+name+"/processes", `{"args":["sleep","3000"]}`)
	var p struct{ ID string }
	if err := json.Unmarshal([]byte(id), &p); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		a, err := http.Post(s.url+"/v1/sandboxes/"+name+"/exec", "application/json", strings.NewReader(`{"args":["sleep","2000"]}`))
		if err == nil {
			a.Body.Close()
			err = fmt.Errorf("an answer: %s", a.Status)
		}
		waiting <- err
	}()
	running := func(words string) bool {
		return strings.Contains(r.ok(t, "exec", name, "--", "ps"), words)
	}
	eventually(t, "the exec runs", func() bool { return running("sleep 2000") })

	s.stop(t, syscall.SIGKILL)
	if err := <-waiting; strings.Contains(err.Error(), "an answer") {
		t.Errorf("the client of a killed server got %v, want an error", err)
	}
	eventually(t, "the exec of a killed server ends", func() bool { return !running("sleep 2000") })
	if !running("sleep 3000") {
		t.Error("the background process went with the server")
	}
	again := r.serve(t)
	if got := again.call(t, 200, "GET", "/v1/sandboxes/"+name+"/processes/"+p.ID, ""); !strings.Contains(got, `"running":true`) {
		t.Errorf("got %s from the next server, want it running", got)
	}
	if res := r.try(t, "serve", "--listen", "127.0.0.1:0"); res.code != 4 {
		t.Errorf("a second server of one data directory: %s", res)
	}
	r.ok(t, "rm", "-f", name)
	again.call(t, 404, "GET", "/v1/sandboxes/"+name, "")
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within(30 * time.Second)); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not true in time: %s", what)
}

// TestGuestsCannotReachTheAPI asks from inside, on every address of the host.
func TestGuestsCannotReachTheAPI(t *testing.T) {
	r := shared(t)
	file := filepath.Join(t.TempDir(), "tokens.json")
	r.ok(t, "token", "create", "--token-file", file, "one")
	s := r.serve(t, "--token-file", file, "--listen", "0.0.0.0:0")
	wide := s.all[len(s.all)-1]
	port := wide[strings.LastIndex(wide, ":")+1:]
	name := r.runSmall(t)
	out, err := exec.Command("hostname", "-I").Output()
	if err != nil {
		t.Skipf("the host's addresses are not known: %v", err)
	}
	for _, a := range strings.Fields(string(out)) {
		if strings.Contains(a, ":") {
			continue
		}
		// What refuses the guest must not be that nobody listens.
		resp, err := http.Get("http://" + a + ":" + port + "/healthz")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("the host itself does not reach the API at %s: %v, %v", a, resp, err)
		}
		resp.Body.Close()
	}
	addresses := append(strings.Fields(string(out)), "169.254.77.1", "10.213.0.1", "127.0.0.1")
	for _, a := range slices.Compact(addresses) {
		if strings.Contains(a, ":") {
			continue
		}
		res := r.try(t, "exec", "--timeout", "20s", name, "--", "wget", "-T", "5", "-O-", "http://"+a+":"+port+"/healthz")
		if res.code == 0 || strings.Contains(res.stdout, "status") {
			t.Errorf("a guest reaches the API at %s: %s", a, res)
		}
	}
	r.ok(t, "rm", "-f", name)
}

// TestIdleSandboxesSleep parks a sandbox and finds its memory as it was.
func TestIdleSandboxesSleep(t *testing.T) {
	r := shared(t)
	s := r.serve(t, "--idle-pause", "3s")
	name := fresh("box")
	t.Cleanup(func() { r.try(t, "rm", "-f", name) })
	s.call(t, 201, "POST", "/v1/sandboxes", fmt.Sprintf(smallRun, name))
	s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["sh","-c","mkdir -p /mnt/ram && mount -t tmpfs none /mnt/ram && echo in memory > /mnt/ram/x"]}`)
	eventually(t, "it is parked", func() bool {
		return strings.Contains(s.call(t, 200, "GET", "/v1/sandboxes/"+name, ""), `"state":"stopped"`)
	})
	if got := s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["cat","/mnt/ram/x"]}`); !strings.Contains(got, "in memory") {
		t.Errorf("got %s after it was woken, want its memory", got)
	}
	if got := query[sandboxInfo](t, r, "inspect", name); got.Head.Branch == "" {
		t.Errorf("got %+v: its branch was lost", got.Head)
	}
}

// TestExecOverHTTPIsFast compares the median of `true` with that of the command
// line, which does the same without a server.
func TestExecOverHTTPIsFast(t *testing.T) {
	r := shared(t)
	s := r.serve(t)
	name := r.runSmall(t)
	defer r.ok(t, "rm", "-f", name)
	median := func(n int, do func()) time.Duration {
		var all []time.Duration
		for range n {
			began := time.Now()
			do()
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	over := func() { s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["true"]}`) }
	over()
	http, shell := median(50, over), median(15, func() { r.ok(t, "exec", name, "--", "true") })
	t.Logf("median of exec true: %.1f ms over HTTP, %.1f ms by a command", http.Seconds()*1000, shell.Seconds()*1000)
	if http > shell {
		t.Errorf("exec over HTTP takes %s, longer than a command's %s", http, shell)
	}
}
