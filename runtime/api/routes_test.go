package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"

	"github.com/sietch-dev/sietch/runtime"
)

// lab is a server over a fake engine.
type lab struct {
	*fakeEngine
	s *Server
	h *httptest.Server
}

func newLab(t testing.TB, edit func(*Options)) *lab {
	t.Helper()
	f := newFake()
	o := Options{Engine: f, Version: "v1.2.3"}
	if edit != nil {
		edit(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(nil)
	s.Configure(h.Config)
	h.Start()
	t.Cleanup(h.Close)
	t.Cleanup(s.Drain)
	return &lab{f, s, h}
}

type reply struct {
	status int
	header http.Header
	body   string
}

// do makes a request and holds the answer against the document.
func (l *lab) do(t testing.TB, method, path, body string, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, l.h.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" && strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	a, err := l.h.Client().Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatalf("%s %s: read answer: %v", method, path, err)
	}
	out := reply{a.StatusCode, a.Header, string(data)}
	if out.header.Get("X-Request-Id") == "" {
		t.Errorf("%s %s: the answer has no X-Request-Id", method, path)
	}
	l.conforms(t, r, out)
	return out
}

// conforms holds an answer against the document.
func (l *lab) conforms(t testing.TB, r *http.Request, a reply) {
	t.Helper()
	probe := r.Clone(context.Background())
	probe.URL.Path, probe.URL.RawPath = unaliased(probe.URL.Path), unaliased(probe.URL.RawPath)
	_, pattern := l.s.mux.Handler(probe)
	op, ok := l.s.document.operations[pattern]
	if !ok {
		if a.status < 400 {
			t.Errorf("%s %s answers %d and is not in the document", r.Method, r.URL.Path, a.status)
		}
		return
	}
	if op.route.Operation.Responses.Status(a.status) == nil && a.status < 400 {
		t.Errorf("%s: status %d is not in the document", op.id, a.status)
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: op.route},
		Status:                 a.status, Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	media := a.header.Get("Content-Type")
	if a.status < 400 && media != "" && media != mediaJSON {
		want := op.route.Operation.Responses.Status(a.status)
		if want == nil || want.Value.Content.Get(media) == nil {
			t.Errorf("%s: content type %q is not in the document", op.id, media)
		}
		return // streams and bytes; tested where they are made
	}
	if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
		t.Errorf("%s answered %d %s\nwhich is not what the document says: %v", op.id, a.status, a.body, err)
	}
}

// routes is every operation of the document, with what it asks the engine for.
var routes = []struct {
	method, path, body string
	status             int
	answer             string // part of it
	call               string // part of the engine's call; empty: none
}{
	{"DELETE", "/v1/calls/none", "", 404, `no call \"none\" is under way`, ``},
	{"GET", "/v1/sandboxes/box/dial/80", "", 426, `"code":"upgrade_required"`, ``},
	{"GET", "/v1/health", "", 200, `"healthy"`, `List true`},
	{"GET", "/health", "", 200, `"healthy"`, ``},
	{"GET", "/v1/vms", "", 200, `"vmName":"box"`, `List true`},
	{"POST", "/v1/vms", `{"vmName":"new"}`, 200, `"status":"RUNNING"`, `"From":"sha256:ab12"`},
	{"DELETE", "/v1/vms", "", 200, `{"success":true}`, `Remove ["box",true]`},
	{"GET", "/v1/vms/box", "", 200, `"ip":"10.213.0.5/20","portForwards":[{"description":"tcp","guestPort":"5901","hostPort":"3000"}]`, `Inspect "box"`},
	{"PATCH", "/v1/vms/box", `{"status":"paused"}`, 200, `{"success":true}`, `Pause "box"`},
	{"DELETE", "/v1/vms/box", "", 200, `{"success":true}`, `Remove ["box",true]`},
	{"POST", "/v1/vms/box/snapshots", `{"snapshotId":"s1"}`, 200, `{"snapshotId":"s1"}`, `CreateRef ["tag","s1","1111`},
	{"POST", "/v1/vms/box/cmd", `{"cmd":"ls"}`, 200, `"error":"exit status 3"`, `"User":"0"`},
	{"GET", "/v1/vms/box/files?paths=/etc/motd,gone", "", 200, `{"files":[{"content":"hello\n","path":"/etc/motd"},{"content":"","error":"/tmp/server_files/gone does not exist","path":"gone"}]}`, `"Path":"/tmp/server_files/gone"`},
	{"POST", "/v1/vms/box/files", `{"files":[{"path":"a/b","content":"x"}]}`, 200, `{}`, `MakeDir ["/tmp/server_files/a",493,true]`},

	{"GET", "/v1/images", "", 200, `"config":{"env":[]`, `ListImages`},
	{"POST", "/v1/builds?name=a&name=b&target=t&build_arg=K=V&no_cache=true", "tar", 200, `{"progress":"#2 two"}`, `"Names":["a","b"],"Target":"t","BuildArgs":{"K":"V"}`},
	{"POST", "/v1/images/pull", `{"ref":"debian"}`, 200, `{"progress":"pulling"}`, `PullImage "debian"`},
	{"POST", "/v1/images/bootstrap", `{"name":"debian:bookworm"}`, 200, `{"image":{"id":"sha256:ab12"`, `BootstrapImage "debian:bookworm"`},
	{"POST", "/v1/images/import?name=n", "tar", 201, `"sha256:ab12"`, `ImportImage ["n","auto",3]`},
	{"GET", "/v1/images/docker.io%2Flibrary%2Fdebian", "", 200, `"sha256:ab12"`, `InspectImage "docker.io/library/debian"`},
	{"DELETE", "/v1/images/debian:bookworm", "", 204, ``, `RemoveImage "debian:bookworm"`},
	{"POST", "/v1/images/debian:bookworm/tags", `{"name":"base"}`, 201, `"sha256:ab12"`, `TagImage ["debian:bookworm","base"]`},
	{"GET", "/v1/images/debian:bookworm/export?format=rootfs", "", 200, `archive`, `ExportImage ["debian:bookworm","rootfs"]`},

	{"GET", "/v1/sandboxes?all=true", "", 200, `"name":"old"`, `List true`},
	{"POST", "/v1/sandboxes", `{"from":"debian:bookworm","name":"n","cpus":2,"memory_bytes":1,"disk_bytes":2,"ports":[{"host":1,"guest":2}],"env":["A=b"],"workdir":"/w","user":"u","network":"none","labels":{"k":"v"},"message":"m","args":["x"],"from_disk":true,"nested":true,"ttl_ms":1500}`, 201, `"timing":{"ready_ms":12.5}`,
		`Run {"Name":"n","From":"debian:bookworm","CPUs":2,"MemoryBytes":1,"DiskBytes":2,"Ports":[{"host_ip":"","host":1,"guest":2,"protocol":"tcp"}],"Env":["A=b"],"WorkingDir":"/w","User":"u","Network":"none","Labels":{"k":"v"},"Message":"m","Args":["x"],"FromDisk":true,"Nested":true,"TTL":1500000000}`},
	{"GET", "/v1/sandboxes/box", "", 200, `"labels":{}`, `Inspect "box"`},
	{"DELETE", "/v1/sandboxes/box?force=true", "", 204, ``, `Remove ["box",true]`},
	{"GET", "/v1/stats", "", 200, `"pss_bytes":7`, `Stats null`},
	{"GET", "/v1/sandboxes/box/stats", "", 200, `"name":"box"`, `Stats ["box"]`},
	{"POST", "/v1/sandboxes/box/resize", `{"cpus":0.5,"memory_bytes":268435456}`, 200, `"cpu_limit":0.5`, `Resize {"Name":"box","CPUs":0.5,"MemoryBytes":268435456}`},
	{"POST", "/v1/sandboxes/box/reclaim", "", 200, `"reclaimed_bytes":5`, `Reclaim "box"`},
	{"POST", "/v1/sandboxes/box/pause", "", 204, ``, `Pause "box"`},
	{"POST", "/v1/sandboxes/lab/resume", "", 204, ``, `Resume "lab"`},
	{"POST", "/v1/sandboxes/box/stop?timeout_ms=250", "", 204, ``, `Stop {"Name":"box","Timeout":250000000}`},
	{"POST", "/v1/sandboxes/old/start", "", 200, `"state":"running"`, `Start "old"`},
	{"GET", "/v1/sandboxes/box/logs?source=main&tail=3", "", 200, "console\n", `Logs {"Name":"box","Follow":false,"Source":"main","Tail":3}`},
	{"POST", "/v1/sandboxes/box/exec", `{"args":["a","b"],"env":["K=V"],"workdir":"/","user":"me","timeout_ms":1000}`, 200, `"exit_code":3,"stderr":"err\n","stdout":"out\n"`, `"Args":["a","b"],"Env":["K=V"],"WorkingDir":"/","User":"me","Stdin":false,"TTY":false,"Rows":0,"Cols":0,"Timeout":1000000000`},
	{"GET", "/v1/sandboxes/box/exec", "", 426, `"upgrade_required"`, ``},
	{"GET", "/v1/sandboxes/box/processes", "", 200, `[{"id":"p1"`, `ListProcesses "box"`},
	{"POST", "/v1/sandboxes/box/processes", `{"args":["sleep","9"]}`, 201, `"id":"p1"`, `"Args":["sleep","9"]`},
	{"GET", "/v1/sandboxes/box/processes/p1", "", 200, `"exit_code":null`, `InspectProcess "p1"`},
	{"DELETE", "/v1/sandboxes/box/processes/p1", "", 204, ``, `RemoveProcess "p1"`},
	{"GET", "/v1/sandboxes/box/processes/p1/wait?timeout_ms=20", "", 200, `"running":true`, `WaitProcess "p1"`},
	{"GET", "/v1/sandboxes/box/processes/p1/output?offset=3&limit=99", "", 200, `34567`, `"Offset":3,"Limit":99,"Follow":false`},
	{"POST", "/v1/sandboxes/box/processes/p1/signal", `{"signal":"sigterm"}`, 204, ``, `SignalProcess ["p1",15]`},
	{"GET", "/v1/sandboxes/box/files?path=/bin/raw", "", 200, "\x00\xff\xfe", `"FollowLink":true`},
	{"PUT", "/v1/sandboxes/box/files?path=/tmp/f&mode=600", "bytes", 204, ``, `CopyIn {"Name":"box","Path":"/tmp"}`},
	{"DELETE", "/v1/sandboxes/box/files?path=/tmp/f&recursive=true", "", 204, ``, `RemovePath ["/tmp/f",true]`},
	{"GET", "/v1/sandboxes/box/files/stat?path=/x", "", 200, `"mode":33188`, `StatPath ["box","/x"]`},
	{"GET", "/v1/sandboxes/box/files/list?path=/", "", 200, `[]`, `ListDir "/"`},
	{"POST", "/v1/sandboxes/box/files/mkdir", `{"path":"/a/b","mode":"0700","parents":true}`, 204, ``, `MakeDir ["/a/b",448,true]`},
	{"GET", "/v1/sandboxes/box/files/tar?path=/etc/motd", "", 200, `hello`, `"FollowLink":false`},
	{"PUT", "/v1/sandboxes/box/files/tar?path=/srv", string(oneFile("f", "data")), 204, ``, `CopyIn {"Name":"box","Path":"/srv"}`},
	{"GET", "/v1/sandboxes/box/files/watch?path=/tmp&recursive=true", "", 200, "event: change\ndata: {\"path\":\"/tmp/x\",\"op\":\"create\",\"is_dir\":false}\n", `WatchPath ["/tmp",true]`},
	{"GET", "/v1/sandboxes/box/ports", "", 200, `[{"host_ip":"0.0.0.0","host":3000`, `Inspect "box"`},
	{"POST", "/v1/sandboxes/box/ports", `{"guest":80,"protocol":"udp"}`, 201, `"host":40000`, `"guest":80,"protocol":"udp"`},
	{"DELETE", "/v1/sandboxes/box/ports/3000?host_ip=::1", "", 204, ``, `{"host_ip":"::1","host":3000,"guest":0,"protocol":"tcp"}`},

	{"POST", "/v1/sandboxes/box/commits", `{"message":"m","author":"me","labels":{"a":"b"},"disk_only":true}`, 201, `"timing":{"pause_ms":1`, `Commit {"Name":"box","Message":"m","Author":"me","Labels":{"a":"b"},"DiskOnly":true}`},
	{"POST", "/v1/sandboxes/box/checkout", `{"ref":"v1","new_branch":"b","no_save":true}`, 200, `"name":"box"`, `Checkout {"Name":"box","Ref":"v1","NewBranch":"b","NoSave":true}`},
	{"GET", "/v1/sandboxes/box/reflog", "", 200, `"action":"commit"`, `Reflog "box"`},
	{"POST", "/v1/forks", `{"from":"box","n":2,"prefix":"p","branch":true,"labels":{"k":"v"}}`, 200, `{"name":"f-2","commit":"c","ip":"10.0.0.9","ready_ms":3}`, `Fork {"From":"box","N":2,"Prefix":"p","Branch":true,"Labels":{"k":"v"}}`},
	{"GET", "/v1/commits?ref=main~2&n=4", "", 200, `"parents":[]`, `Log {"Ref":"main~2","N":4}`},
	{"GET", "/v1/commits/box%40%7B1%7D", "", 200, `"kind":"full"`, `Show "box@{1}"`},
	{"GET", "/v1/branches", "", 200, `"name":"main"`, `ListRefs "branch"`},
	{"POST", "/v1/branches", `{"name":"b","ref":"main"}`, 201, `"name":"b"`, `CreateRef ["branch","b","main"]`},
	{"PATCH", "/v1/branches/main", `{"name":"trunk"}`, 204, ``, `RenameBranch ["main","trunk"]`},
	{"DELETE", "/v1/branches/main", "", 204, ``, `DeleteRef ["branch","main"]`},
	{"GET", "/v1/tags", "", 200, `"name":"v1"`, `ListRefs "tag"`},
	{"POST", "/v1/tags", `{"name":"v2","ref":"main"}`, 201, `"name":"v2"`, `CreateRef ["tag","v2","main"]`},
	{"DELETE", "/v1/tags/v1", "", 204, ``, `DeleteRef ["tag","v1"]`},

	{"POST", "/v1/gc?dry_run=true", "", 200, `"dry_run":true`, `GC true`},
	{"GET", "/v1/fsck", "", 200, `"problems":[]`, `Fsck`},
	{"GET", "/v1/du", "", 200, `"store_bytes":5`, `DiskUsage`},
	{"GET", "/v1/events?after=3&follow=false", "", 200, "id: 7\nevent: sandbox.run\ndata: {", `Events {"After":3,"Follow":false}`},
	{"GET", "/v1/doctor", "", 200, `"ok":true`, `Doctor`},
	{"GET", "/v1/version", "", 200, `"version":"v1.2.3"`, ``},
	{"GET", "/v1/openapi.yaml", "", 200, `openapi: 3.0`, ``},
	{"GET", "/healthz", "", 200, `"status":"ok"`, ``},
	{"GET", "/readyz", "", 200, `"detail":"3 sandboxes"`, `List true`},
	{"GET", "/metrics", "", 200, `sietch_sandboxes{state="running"} 1`, `List true`},
}

func TestRoutes(t *testing.T) {
	for _, tt := range routes {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			l := newLab(t, nil)
			a := l.do(t, tt.method, tt.path, tt.body)
			if a.status != tt.status {
				t.Errorf("got status %d, want %d: %s", a.status, tt.status, a.body)
			}
			if !strings.Contains(a.body, tt.answer) {
				t.Errorf("got %s\nwant in it %s", a.body, tt.answer)
			}
			if calls := strings.Join(l.calls, "\n"); !strings.Contains(calls, tt.call) {
				t.Errorf("got calls\n%s\nwant among them %s", calls, tt.call)
			}
		})
	}
}

// TestEveryRouteIsTested wants every operation of the document in the table, and
// every alias to lead where the document says.
func TestEveryRouteIsTested(t *testing.T) {
	l := newLab(t, nil)
	tested := map[string]bool{}
	for _, tt := range routes {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		r.URL.Path = unaliased(r.URL.Path)
		_, pattern := l.s.mux.Handler(r)
		tested[pattern] = true
	}
	for pattern, op := range l.s.document.operations {
		if !tested[pattern] && op.id != "proxy" {
			t.Errorf("no test of %s (%s)", pattern, op.id)
		}
		alias, ok := op.route.PathItem.Extensions["x-alias"].(string)
		if ok && op.id != "proxy" && unaliased(alias) != op.route.Path {
			t.Errorf("alias %s does not lead to %s", alias, op.route.Path)
		}
		if strings.HasPrefix(op.id, "arrakis") && !ok {
			t.Errorf("%s has no alias", op.id)
		}
	}
}

// TestEveryFailureIsAnswered lets everything that the engine is asked for fail.
func TestEveryFailureIsAnswered(t *testing.T) {
	broken := &runtime.Error{Kind: runtime.ErrBusy, Message: "it is busy", Hint: "wait"}
	verbs := []string{}
	for _, tt := range routes {
		if tt.call != "" {
			verb, _, _ := strings.Cut(tt.call, " ")
			verbs = append(verbs, verb)
		}
	}
	for _, tt := range routes {
		if tt.call == "" || slices.Contains([]string{"/metrics", "/readyz", "/v1/health"}, tt.path) {
			continue
		}
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			l := newLab(t, nil)
			for _, v := range []string{"Build", "ListImages", "InspectImage", "RemoveImage", "TagImage", "ImportImage", "ExportImage", "PullImage", "BootstrapImage",
				"Run", "List", "Inspect", "Logs", "Exec", "CopyIn", "CopyOut", "StatPath", "Stats", "Resize", "Reclaim", "Pause", "Resume", "Stop", "Start", "Remove",
				"StartProcess", "ListProcesses", "InspectProcess", "WaitProcess", "ProcessOutput", "SignalProcess", "RemoveProcess",
				"ListDir", "MakeDir", "RemovePath", "WatchPath", "AddPort", "RemovePort", "DialPort", "Events",
				"Commit", "Fork", "Checkout", "Log", "Show", "Reflog", "ListRefs", "CreateRef", "DeleteRef", "RenameBranch", "GC", "Fsck", "DiskUsage", "Doctor"} {
				l.fails[v] = broken
			}
			a := l.do(t, tt.method, tt.path, tt.body)
			if !strings.Contains(a.body, `"code":"busy"`) || !strings.Contains(a.body, "it is busy") || !strings.Contains(a.body, `"hint":"wait"`) {
				t.Errorf("got %d %s, want the engine's error", a.status, a.body)
			}
			streamed := a.header.Get("Content-Type") != mediaJSON
			if !streamed && a.status != 409 {
				t.Errorf("got status %d, want 409", a.status)
			}
		})
	}
	if len(verbs) < 50 {
		t.Fatalf("only %d routes ask the engine for something: does the table still fit?", len(verbs))
	}
}

// TestErrorTable holds every row of the table that the engine can cause.
func TestErrorTable(t *testing.T) {
	tests := []struct {
		err    error
		status int
		code   ErrorCode
	}{
		{runtime.ErrUsage, 400, "usage"},
		{runtime.ErrNotFound, 404, "not_found"},
		{runtime.ErrBusy, 409, "busy"},
		{runtime.ErrState, 409, "wrong_state"},
		{runtime.ErrNotActive, 409, "not_running"},
		{runtime.ErrHost, 503, "host"},
		{runtime.ErrCorrupt, 500, "corrupt"},
		{context.DeadlineExceeded, 504, "timeout"},
		{errors.Join(runtime.ErrNotFound, runtime.ErrCorrupt), 500, "corrupt"},
		{errors.New("who knows"), 500, "failed"},
	}
	for _, tt := range tests {
		l := newLab(t, nil)
		l.fails["Inspect"] = fmt.Errorf("look: %w", tt.err)
		a := l.do(t, "GET", "/v1/sandboxes/box", "")
		if a.status != tt.status || !strings.Contains(a.body, `"code":"`+string(tt.code)+`"`) {
			t.Errorf("%v: got %d %s, want %d %s", tt.err, a.status, a.body, tt.status, tt.code)
		}
	}
	listed := newLab(t, nil).s.document.spec.Components.Schemas["ErrorCode"].Value
	for _, k := range kinds {
		if !slices.Contains(listed.Enum, any(string(k.code))) || !strings.Contains(listed.Description, fmt.Sprint(k.status)) {
			t.Errorf("code %s (%d) is not in the document", k.code, k.status)
		}
	}
}

// TestWrongRequests are refused before the engine hears of them.
func TestWrongRequests(t *testing.T) {
	long := `{"from":"` + strings.Repeat("x", 1<<20) + `"}`
	tests := []struct {
		method, path, body string
		status             int
		words              string
		headers            []string
	}{
		{"GET", "/v1/sandboxes/UPPER", "", 400, "name", nil},
		{"GET", "/v1/sandboxes/..%2F..%2Fetc", "", 400, "name", nil},
		{"GET", "/v1/sandboxes/a%00b", "", 400, "name", nil},
		{"GET", "/v1/sandboxes/" + strings.Repeat("a", 64), "", 400, "name", nil},
		{"POST", "/v1/sandboxes", `{"from":"x","nme":"typo"}`, 400, "nme", nil},
		{"POST", "/v1/sandboxes", `{}`, 400, "from", nil},
		{"POST", "/v1/sandboxes", ``, 400, "body", nil},
		{"POST", "/v1/sandboxes", `{"from":1,"cpus":"two"}`, 400, "cpus", nil},
		{"POST", "/v1/sandboxes", `{"from":"x"} {"from":"y"}`, 400, "", nil},
		{"POST", "/v1/sandboxes", `{"from":"x","network":"moon"}`, 400, "network", nil},
		{"POST", "/v1/sandboxes", `{"from":"x","ports":[{"guest":70000}]}`, 400, "ports.0.guest", nil},
		{"POST", "/v1/sandboxes", long, 413, "too large", nil},
		{"POST", "/v1/sandboxes", `{"from":"x"}`, 415, "Content-Type", []string{"Content-Type", "text/plain"}},
		{"POST", "/v1/sandboxes/box/exec", `{"args":[]}`, 400, "args", nil},
		{"POST", "/v1/sandboxes/box/exec", `{"args":["x"],"stdin":"a","stdin_base64":"YQ=="}`, 400, "stdin", nil},
		{"POST", "/v1/sandboxes/box/exec", `{"args":["x"],"stdin_base64":"!"}`, 400, "base64", nil},
		{"POST", "/v1/sandboxes/box/processes/p1/signal", `{"signal":"NOPE"}`, 400, "NOPE", nil},
		{"GET", "/v1/sandboxes/box/files?path=relative", "", 400, "path", nil},
		{"GET", "/v1/sandboxes/box/files", "", 400, "path", nil},
		{"PUT", "/v1/sandboxes/box/files?path=/dir/", "x", 400, "file", nil},
		{"PUT", "/v1/sandboxes/box/files?path=/f&mode=999", "x", 400, "mode", nil},
		{"GET", "/v1/commits?n=-1", "", 400, "n", nil},
		{"GET", "/v1/sandboxes/box/logs?tail=many", "", 400, "tail", nil},
		{"DELETE", "/v1/sandboxes/box/ports/0", "", 400, "host", nil},
		{"POST", "/v1/builds?build_context=a=/etc", "tar", 400, "build_context", nil},
		{"POST", "/v1/builds?build_context=a=file:///etc", "tar", 400, "build_context", nil},
		{"POST", "/v1/builds?build_arg=novalue", "tar", 400, "build_arg", nil},
		{"POST", "/v1/builds", "tar", 400, "Secrets", []string{"Sietch-Build-Secrets", "%%%"}},
		{"GET", "/v1/events", "", 400, "Last-Event-ID", []string{"Last-Event-ID", "x"}},
		{"POST", "/v1/forks", `{"from":"box","n":0}`, 400, "n", nil},
		{"POST", "/v1/vms", `{"vmName":"x","kernel":"/boot/vmlinuz"}`, 400, "kernel", nil},
		{"POST", "/v1/vms", `{}`, 400, "vmName", nil},
		{"POST", "/v1/vms/box/cmd", `{}`, 400, "cmd", nil},
		{"PATCH", "/v1/vms/box", `{"status":"flying"}`, 400, "status", nil},
		{"POST", "/v1/vms/box/snapshots", `{"snapshotId":"../up"}`, 400, "snapshotId", nil},
		{"POST", "/v1/vms/box/files", `{"files":[{"path":""}]}`, 400, "path", nil},
		{"GET", "/v1/nothing", "", 404, "openapi", nil},
		{"PUT", "/v1/sandboxes", "", 405, "POST", nil},
	}
	for _, tt := range tests {
		l := newLab(t, func(o *Options) { o.MaxBodyBytes = 64 << 10 })
		a := l.do(t, tt.method, tt.path, tt.body, tt.headers...)
		if a.status != tt.status || !strings.Contains(a.body, tt.words) {
			t.Errorf("%s %s %.60s: got %d %s, want %d and %q", tt.method, tt.path, tt.body, a.status, a.body, tt.status, tt.words)
		}
		for _, verb := range []string{"Run", "Exec", "Commit", "Fork", "Build", "CopyIn", "SignalProcess"} {
			if c := l.called(verb); len(c) > 0 {
				t.Errorf("%s %s %.60s: the engine was asked to %s", tt.method, tt.path, tt.body, verb)
			}
		}
	}
}

func TestSecretsOfABuildAreGoneAfterIt(t *testing.T) {
	l := newLab(t, nil)
	header := base64.StdEncoding.EncodeToString([]byte(`{"token":"` + base64.StdEncoding.EncodeToString([]byte("hush")) + `"}`))
	a := l.do(t, "POST", "/v1/builds", "tar", "Sietch-Build-Secrets", header)
	if a.status != 200 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	call := strings.Join(l.called("Build"), "")
	_, path, ok := strings.Cut(call, `"Secrets":[{"ID":"token","Source":"`)
	if !ok {
		t.Fatalf("the engine was not given the secret: %s", call)
	}
	path, _, _ = strings.Cut(path, `"`)
	if data, err := readAll(path); err == nil {
		t.Errorf("%s is still there: %q", path, data)
	}
	if bytes.Contains([]byte(call), []byte("hush")) {
		t.Errorf("the secret itself is in the request: %s", call)
	}
}

// TestRefusedUploadsAreAnswered: whoever sends much hears why it is not wanted,
// and is not cut off while sending.
func TestRefusedUploadsAreAnswered(t *testing.T) {
	l := newLab(t, nil)
	l.fails["ImportImage"] = usage("no archive", "")
	l.fails["CopyIn"] = runtime.ErrNotFound
	body := make([]byte, 16<<20)
	// A client that sends all before it reads.
	send := func(method, path, header string) int {
		c, err := net.Dial("tcp", l.h.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n", method, path, len(body), header)
		if _, err := c.Write(body); err != nil {
			t.Errorf("%s %s: %v", method, path, err)
			return 0
		}
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
			return 0
		}
		a.Body.Close()
		return a.StatusCode
	}
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v1/images/import", 400},
		{"POST", "/v1/builds?build_arg=novalue", 400},
		{"PUT", "/v1/sandboxes/box/files/tar?path=/x", 404},
		{"PUT", "/v1/sandboxes/UPPER/files/tar?path=/x", 400},
		{"PUT", "/v1/sandboxes/box/files?path=relative", 400},
	} {
		if got := send(tt.method, tt.path, ""); got != tt.status {
			t.Errorf("%s %s: got %d, want %d", tt.method, tt.path, got, tt.status)
		}
	}
	// Nor is who repeats what has been done.
	for range 2 {
		if got := send("POST", "/v1/builds", "Idempotency-Key: k\r\n"); got != 200 {
			t.Errorf("with a key: got %d", got)
		}
	}
}
