package cloudhypervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// serveAPI answers each request with what f writes for it.
func serveAPI(t *testing.T, f func(req *http.Request, body string, c net.Conn)) api {
	t.Helper()
	path := filepath.Join(runDir(t), "api")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				body, _ := io.ReadAll(req.Body)
				f(req, string(body), c)
			}
			c.Close()
		}
	}()
	return api{path}
}

func TestRequests(t *testing.T) {
	var got []string
	a := serveAPI(t, func(req *http.Request, body string, c net.Conn) {
		got = append(got, fmt.Sprintf("%s %s %d %v %q", req.Method, req.URL.Path, req.ContentLength, req.TransferEncoding, body))
		if req.Method == http.MethodGet {
			io.WriteString(c, "HTTP/1.1 200 \r\nContent-Length: 19\r\n\r\n{\"state\":\"Running\"}")
			return
		}
		io.WriteString(c, "HTTP/1.1 204 \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n\r\n")
	})
	state, err := a.state(t.Context())
	if state != stateRunning || err != nil {
		t.Errorf("got state %q, %v", state, err)
	}
	if err := errors.Join(a.put(t.Context(), "vm.boot", nil),
		a.put(t.Context(), "vm.snapshot", snapshotRequest{"file:///a"})); err != nil {
		t.Error(err)
	}
	want := []string{
		`GET /api/v1/vm.info 0 [] ""`,
		`PUT /api/v1/vm.boot 0 [] ""`,
		`PUT /api/v1/vm.snapshot 31 [] "{\"destination_url\":\"file:///a\"}"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct{ what, answer, says string }{
		{"reasons", "HTTP/1.1 500 \r\nContent-Length: 57\r\n\r\n[\"Error from API\",\"The VM could not boot\",\"No such file\"]", "vm.boot: The VM could not boot: No such file"},
		{"one reason", "HTTP/1.1 404 \r\nContent-Length: 13\r\n\r\n[\"Not Found\"]", "vm.boot: Not Found"},
		{"text", "HTTP/1.1 400 \r\nContent-Length: 4\r\n\r\nbad\n", "vm.boot: bad"},
		{"nothing", "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n", "vm.boot: HTTP status 400"},
		{"not HTTP", "220 ready\r\n", "vm.boot: read answer"},
		{"cut off", "HTTP/1.1 500 \r\nContent-Length: 100\r\n\r\n[", "vm.boot: read answer"},
		{"silence and the end", "", "vm.boot: read answer"},
	} {
		a := serveAPI(t, func(_ *http.Request, _ string, conn net.Conn) { io.WriteString(conn, c.answer) })
		if err := a.put(t.Context(), "vm.boot", nil); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.says)
		}
	}
	for _, answer := range []string{"{}", "[]", `{"state":1}`, ""} {
		a := serveAPI(t, func(_ *http.Request, _ string, conn net.Conn) {
			fmt.Fprintf(conn, "HTTP/1.1 200 \r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
		})
		if state, err := a.state(t.Context()); err == nil {
			t.Errorf("state in %q: got %q", answer, state)
		}
	}
	silent := serveAPI(t, func(_ *http.Request, _ string, c net.Conn) { io.Copy(io.Discard, c) })
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := silent.put(short, "vm.boot", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: got %v, want the context's error", err)
	}
	if err := silent.put(short, "vm.boot", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a dead context: got %v", err)
	}
	if err := (api{"/nonexistent"}).put(t.Context(), "vm.boot", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: got %v", err)
	}
}

func TestRAMRefused(t *testing.T) {
	refused := []string{"Error from API", "The VM could not be snapshotted", "Cannot send VM snapshot",
		`Error creating memory snapshot file "/run/a/vmm/snapshot/memory-ranges"`, "File exists (os error 17)"}
	for _, c := range []struct {
		what    string
		status  int
		reasons []string
		want    bool
	}{
		{"as v53", 500, refused, true},
		{"another status", 404, refused, false},
		{"another cause", 500, append(refused[:4:4], "No space left on device (os error 28)"), false},
		{"another file", 500, []string{`Error creating VM state snapshot file "/a/state.json"`, "File exists (os error 17)"}, false},
		{"no reason", 500, nil, false},
	} {
		if got := ramRefused(fmt.Errorf("save: %w", &apiError{"vm.snapshot", c.status, c.reasons})); got != c.want {
			t.Errorf("%s: got %v", c.what, got)
		}
	}
	if ramRefused(errors.New("File exists (os error 17)")) || ramRefused(nil) {
		t.Error("an error of another kind is taken for a refusal")
	}
}

// TestConfigIsUnderstood gives cloud-hypervisor what a machine is made with, up
// to its boot. That needs no KVM that works, only one that is there.
func TestConfigIsUnderstood(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.CloudHypervisor)
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		t.Skip("cloud-hypervisor does not start here: ", err)
	} else {
		f.Close()
	}
	s := fakeSpec(t)
	s.Cmdline = "quiet"
	s.NetNS = vmmtest.Namespace(t, "tap0")
	s.NIC = &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"}
	t.Run("free", func(t *testing.T) { testConfigIsUnderstood(t, s) })
	s.Jail = &vmm.Jail{UID: 64999, GID: 64998}
	t.Run("jailed", func(t *testing.T) { testConfigIsUnderstood(t, s) })
}

func testConfigIsUnderstood(t *testing.T, s vmm.Spec) {
	s.RunDir = runDir(t)
	if _, err := makeOwnDir(s); err != nil {
		t.Fatal(err)
	}
	h, err := New(Options{Binary: realBinary()}).findHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := prepareConsole(s.ConsoleLog, s.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	p, tap, err := start(t.Context(), s, h, c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	defer tap.Close()
	a := api{filepath.Join(s.RunDir, socketName)}
	if err := a.put(t.Context(), "vm.create", makeConfig(s)); err != nil {
		t.Fatal(err)
	}
	if err := c.opened(p.PID()); err != nil {
		t.Fatal(err)
	}
	if err := a.put(t.Context(), "vm.add-net", makeNet(*s.NIC), tap); err != nil {
		t.Fatal(err)
	}
	var info struct {
		State  string          `json:"state"`
		Config json.RawMessage `json:"config"`
	}
	if err := a.call(t.Context(), http.MethodGet, "vm.info", nil, nil, &info); err != nil {
		t.Fatal(err)
	}
	if info.State != "Created" {
		t.Errorf("state is %q", info.State)
	}
	var back vmConfig
	if err := json.Unmarshal(info.Config, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(makeConfig(s), back); diff != "" {
		t.Errorf("configuration (-given +understood):\n%s", diff)
	}
	// It is also what a saved state would hold.
	if _, err := placeConfig(info.Config, s); err != nil {
		t.Errorf("%v: %s", err, info.Config)
	}
	// And a boot fails where it must: at the kernel, which is none.
	var answered *apiError
	if err := a.put(t.Context(), "vm.boot", nil); !errors.As(err, &answered) {
		t.Errorf("boot of a kernel that is none: got %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}
