package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/png"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// session is a client of a server over a fake engine.
type session struct {
	*sdk.ClientSession
	t      *testing.T
	engine *fake

	mu   sync.Mutex
	told []*sdk.ProgressNotificationParams
}

func connect(t *testing.T, f *fake) *session {
	t.Helper()
	s := &session{t: t, engine: f}
	here, there := sdk.NewInMemoryTransports()
	server, err := New(f, Options{Version: "test"}).Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.attach(here)
	t.Cleanup(func() { s.Close(); server.Wait() })
	return s
}

func (s *session) attach(transport sdk.Transport) {
	s.t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "0"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told = append(s.told, r.Params)
		},
	})
	var err error
	if s.ClientSession, err = client.Connect(s.t.Context(), transport, nil); err != nil {
		s.t.Fatal(err)
	}
}

type args map[string]any

// call calls a tool and returns what it says.
func (s *session) call(tool string, in args) *sdk.CallToolResult {
	s.t.Helper()
	p := &sdk.CallToolParams{Name: tool, Arguments: in}
	r, err := s.CallTool(s.t.Context(), p)
	if err != nil {
		s.t.Fatalf("%s: %v", tool, err)
	}
	return r
}

// ok is the text of a call that must succeed; texts are joined by |.
func (s *session) ok(tool string, in args) string {
	s.t.Helper()
	r := s.call(tool, in)
	if r.IsError {
		s.t.Fatalf("%s %v fails: %s", tool, in, texts(r))
	}
	return texts(r)
}

// fails is the text of a call that must not.
func (s *session) fails(tool string, in args) string {
	s.t.Helper()
	r := s.call(tool, in)
	if !r.IsError {
		s.t.Fatalf("%s %v succeeds: %s", tool, in, texts(r))
	}
	return texts(r)
}

func texts(r *sdk.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "|")
}

func contains(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got %q, want %q in it", got, w)
		}
	}
}

// structured is a result for programs.
func structured[T any](t *testing.T, r *sdk.CallToolResult) T {
	t.Helper()
	data, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

// TestTools holds names, parameters and hints: they are a contract.
func TestTools(t *testing.T) {
	s := connect(t, newFake())
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, tool := range list.Tools {
		schema := tool.InputSchema.(map[string]any)
		required := []string{}
		for _, r := range asList(schema["required"]) {
			required = append(required, r.(string))
		}
		optional := []string{}
		for name, p := range asMap(schema["properties"]) {
			if !slices.Contains(required, name) {
				optional = append(optional, name)
			}
			if asMap(p)["description"] == nil {
				t.Errorf("%s: parameter %s has no description", tool.Name, name)
			}
		}
		slices.Sort(required)
		slices.Sort(optional)
		line := tool.Name + "(" + strings.Join(required, " ") + ")"
		if len(optional) > 0 {
			line += " [" + strings.Join(optional, " ") + "]"
		}
		for hint, is := range map[string]bool{" ro": tool.Annotations.ReadOnlyHint, " destructive": *tool.Annotations.DestructiveHint} {
			if is {
				line += hint
			}
		}
		got = append(got, line)
		if tool.Description == "" || tool.Title == "" || tool.Annotations.OpenWorldHint == nil {
			t.Errorf("%s lacks title, description or a hint", tool.Name)
		}
	}
	want := []string{
		"checkout(ref vm_name) [new_branch no_save] destructive",
		"commit(vm_name) [disk_only message]",
		"destroy_all_vms() destructive",
		"destroy_vm(vm_name) destructive",
		"download_file(path vm_name) [length offset] ro",
		"fork(from) [branch n prefix]",
		"forward_port(guest_port vm_name) [host_port]",
		"list_sandboxes() ro",
		"log() [n ref] ro",
		"read_output(process_id vm_name) [offset wait_seconds] ro",
		"restore_snapshot(snapshot_id vm_name) destructive",
		"run_background(cmd vm_name) destructive",
		"run_command(cmd vm_name) destructive",
		"screenshot(vm_name) [display password port] ro",
		"snapshot(vm_name) [snapshot_id]",
		"start_sandbox(name) [cpus image memory_mib]",
		"update_vm_state(status vm_name) destructive",
		"upload_file(content path vm_name) [encoding] destructive",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

func asList(v any) []any         { l, _ := v.([]any); return l }
func asMap(v any) map[string]any { m, _ := v.(map[string]any); return m }

// TestFlow is the way that agents go: start, work, save, break, restore.
func TestFlow(t *testing.T) {
	s := connect(t, newFake())
	contains(t, s.ok("list_sandboxes", nil), "no sandbox")
	contains(t, s.ok("start_sandbox", args{"name": "web"}), "web is running", "10.88.0.2")
	if got := s.engine.boxes["web"].Image; got != "debian:bookworm" {
		t.Errorf("it runs %q, want the default image", got)
	}
	contains(t, s.fails("start_sandbox", args{"name": "web"}), "already running")
	contains(t, s.ok("start_sandbox", args{"name": "other", "image": "agent", "cpus": 2, "memory_mib": 1024}), "other is running")
	if got := s.engine.boxes["other"]; got.Image != "agent" || got.CPUs != 2 || got.MemoryBytes != 1<<30 {
		t.Errorf("asked for agent, 2 processors and 1 GiB it is %+v", got.Sandbox)
	}
	contains(t, s.fails("start_sandbox", args{"name": "less", "cpus": -1}), "cpus -1")

	contains(t, s.ok("upload_file", args{"vm_name": "web", "path": "a.txt", "content": "first"}), "/tmp/server_files/a.txt")
	if got := s.ok("snapshot", args{"vm_name": "web", "snapshot_id": "initial-state"}); got != "initial-state" {
		t.Errorf("snapshot is %q", got)
	}
	contains(t, s.fails("snapshot", args{"vm_name": "web", "snapshot_id": "initial-state"}), "already", "hint: choose another")
	contains(t, s.fails("snapshot", args{"vm_name": "web", "snapshot_id": "../x"}), "does not match")
	contains(t, s.fails("snapshot", args{"vm_name": "web", "snapshot_id": "a..b"}), "does not match")
	if made := s.ok("snapshot", args{"vm_name": "web"}); !strings.HasPrefix(made, "web-") {
		t.Errorf("a snapshot without a name is called %q", made)
	}
	s.ok("upload_file", args{"vm_name": "web", "path": "a.txt", "content": "second"})

	// A second machine of it, while the first runs.
	contains(t, s.ok("restore_snapshot", args{"vm_name": "twin", "snapshot_id": "initial-state"}), "twin is running")
	if got := s.ok("download_file", args{"vm_name": "twin", "path": "a.txt"}); got != "first" {
		t.Errorf("the twin has %q", got)
	}
	// In place, and under the same name once it is destroyed.
	s.ok("restore_snapshot", args{"vm_name": "web", "snapshot_id": "initial-state"})
	if got := s.ok("download_file", args{"vm_name": "web", "path": "/tmp/server_files/a.txt"}); got != "first" {
		t.Errorf("restored in place it has %q", got)
	}
	s.ok("destroy_vm", args{"vm_name": "web"})
	contains(t, s.fails("destroy_vm", args{"vm_name": "web"}), "does not exist", "hint: ")
	s.ok("restore_snapshot", args{"vm_name": "web", "snapshot_id": "initial-state"})
	contains(t, s.fails("restore_snapshot", args{"vm_name": "web", "snapshot_id": "nothing"}), `"nothing" does not exist`)

	contains(t, s.ok("update_vm_state", args{"vm_name": "web", "status": "paused"}), "web is paused")
	contains(t, s.ok("start_sandbox", args{"name": "web"}), "web is running")
	contains(t, s.ok("update_vm_state", args{"vm_name": "web", "status": "stopped"}), "web is stopped")
	contains(t, s.fails("run_command", args{"vm_name": "web", "cmd": "say x"}), "is stopped")
	contains(t, s.ok("start_sandbox", args{"name": "web"}), "web is running")
	contains(t, s.fails("update_vm_state", args{"vm_name": "web", "status": "gone"}), "not stopped, paused or resume")

	contains(t, s.ok("forward_port", args{"vm_name": "web", "guest_port": 5737}), "127.0.0.1:40000")
	contains(t, s.fails("forward_port", args{"vm_name": "web", "guest_port": 70000}), "not of 1 to 65535")
	list := s.call("list_sandboxes", nil)
	got := structured[sandboxes](t, list)
	if len(got.Sandboxes) != 3 || got.Sandboxes[2].Name != "web" || got.Sandboxes[2].State != "running" || !slices.Equal(got.Sandboxes[2].Ports, []string{"40000->5737"}) {
		t.Errorf("list_sandboxes: %+v", got)
	}
	contains(t, texts(list), "web is running", "ports 40000->5737")

	s.engine.fail["Remove twin"] = errors.New("the disk is stuck")
	contains(t, s.fails("destroy_all_vms", nil), "destroyed are", "but: the disk is stuck")
	delete(s.engine.fail, "Remove twin")
	contains(t, s.ok("destroy_all_vms", nil), "destroyed: twin")
	contains(t, s.ok("destroy_all_vms", nil), "no sandbox")
}

func TestHistory(t *testing.T) {
	s := connect(t, newFake())
	contains(t, s.ok("log", nil), "no commit")
	s.ok("start_sandbox", args{"name": "web"})
	one := s.call("commit", args{"vm_name": "web", "message": "step one"})
	c := structured[commit](t, one)
	if c.ID == "" || c.Message != "step one" || c.Kind != "full" || c.Created != "2025-06-01T12:00:00Z" {
		t.Errorf("commit: %+v", c)
	}
	contains(t, texts(one), c.ID, "branch main", "stood still")
	if two := structured[commit](t, s.call("commit", args{"vm_name": "web", "disk_only": true})); two.Kind != "disk" || !slices.Equal(two.Parents, []string{c.ID}) {
		t.Errorf("second commit: %+v", two)
	}
	contains(t, s.ok("checkout", args{"vm_name": "web", "ref": c.ID, "new_branch": "try"}), "web is running", "branch try", "web@{1}")
	if got := s.ok("checkout", args{"vm_name": "web", "ref": c.ID, "no_save": true}); strings.Contains(got, "@{1}") {
		t.Errorf("checkout without saving says %q", got)
	}
	contains(t, s.fails("checkout", args{"vm_name": "web", "ref": "nothing"}), "no such ref")

	s.ok("snapshot", args{"vm_name": "web", "snapshot_id": "v1"})
	contains(t, s.ok("log", nil), "step one", "(tag: v1)", "[disk only]", "of web")
	if got := structured[history](t, s.call("log", args{"n": 1})); len(got.Commits) != 1 || !slices.Equal(got.Commits[0].Refs, []string{"tag: v1"}) {
		t.Errorf("log of one: %+v", got)
	}
	contains(t, s.fails("log", args{"n": 1000}), "not 1 to 500")

	all := structured[forks](t, s.call("fork", args{"from": "web", "n": 8, "prefix": "try"}))
	if len(all.Forks) != 8 || all.Forks[7].Name != "try-8" {
		t.Errorf("fork: %+v", all)
	}
	contains(t, s.fails("fork", args{"from": "web", "n": 65}), "not 1 to 64")
	s.engine.fail["Fork 3"] = &runtime.Error{Kind: runtime.ErrHost, Message: "no space left", Hint: "sietch gc"}
	contains(t, s.fails("fork", args{"from": "web", "n": 8, "prefix": "try"}), "2 of 8 copies are up", "try-2 is running", "no space left", "hint: sietch gc")
}

func TestCommands(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	tests := []struct{ cmd, want string }{
		{"say hello", "hello"},
		{"say \nhello", "\nhello"},
		{"nothing", "[no output]"},
		{"fail oh", "oh\n[exit status 3]"},
		{"fail", "[exit status 3]"},
		{"killed", "[killed by signal 9]"},
		{"say \xff", "\uFFFD"},
	}
	for _, tt := range tests {
		if got := s.ok("run_command", args{"vm_name": "web", "cmd": tt.cmd}); got != tt.want {
			t.Errorf("%q says %q, want %q", tt.cmd, got, tt.want)
		}
	}
	contains(t, s.fails("run_command", args{"vm_name": "web", "cmd": ""}), "cmd is missing")
	contains(t, s.fails("run_command", args{"vm_name": "web", "cmd": "a\x00b"}), "NUL")
	contains(t, s.fails("run_command", args{"vm_name": "no", "cmd": "say"}), "does not exist")
	contains(t, s.fails("run_command", args{"vm_name": "web"}), "cmd")
	contains(t, s.fails("run_command", args{"vm_name": "web", "cmd": "say", "user": "me"}), "user")

	_, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_command", Arguments: args{"vm_name": "web", "cmd": "fall over"}})
	if err == nil || !strings.Contains(err.Error(), "the server made a mistake") {
		t.Errorf("a tool that falls over answers %v", err)
	}
	if got := s.ok("run_command", args{"vm_name": "web", "cmd": "say alive"}); got != "alive" {
		t.Errorf("after it: %q", got)
	}
}

// TestLongOutput wants beginning and end, and the rest where the text says.
func TestLongOutput(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	const lines = 200_000 // of 15 bytes
	got := s.ok("run_command", args{"vm_name": "web", "cmd": "many 200000"})
	if len(got) > shownHead+shownTail+500 {
		t.Errorf("%d bytes are shown", len(got))
	}
	contains(t, got, "line 000000000\n", "line 000199999\n", "bytes are left out here")
	_, after, _ := strings.Cut(got, "output is in ")
	file, _, _ := strings.Cut(after, ":")
	if whole := s.engine.boxes["web"].files[file]; len(whole) != lines*15 || !bytes.HasSuffix(whole, []byte("line 000199999\n")) {
		t.Errorf("%s has %d bytes, want %d", file, len(whole), lines*15)
	}
	contains(t, s.ok("download_file", args{"vm_name": "web", "path": file, "offset": shownHead, "length": 30}), "line 00000", "go on with offset 49182")

	s.engine.fail["CopyIn"] = errors.New("no space left")
	contains(t, s.ok("run_command", args{"vm_name": "web", "cmd": "many 200000"}), "could not be kept (no space left)", "line 000199999")
	// Just as much as fits is shown whole.
	if got := s.ok("run_command", args{"vm_name": "web", "cmd": "say " + strings.Repeat("x", shownHead+shownTail)}); got != strings.Repeat("x", shownHead+shownTail) {
		t.Errorf("an output that fits comes as %d bytes", len(got))
	}
}

func TestBackground(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	first := s.call("run_background", args{"vm_name": "web", "cmd": "server"})
	if p := structured[started](t, first); p.ProcessID != "p1" || p.PID != 300 {
		t.Errorf("run_background: %+v", p)
	}
	contains(t, texts(first), "process p1", "kill 300")
	s.engine.write("p1", "listening\n")
	r := s.call("read_output", args{"vm_name": "web", "process_id": "p1"})
	if got := structured[read](t, r); got.Output != "listening\n" || got.NextOffset != 10 || !got.Running || got.ExitCode != nil {
		t.Errorf("read_output: %+v", got)
	}
	contains(t, texts(r), "listening\n|", "still runs", "next offset 10")

	go func() {
		time.Sleep(300 * time.Millisecond)
		s.engine.write("p1", "bye\n")
		s.engine.end("p1", 2)
	}()
	r = s.call("read_output", args{"vm_name": "web", "process_id": "p1", "offset": 10, "wait_seconds": 30})
	contains(t, texts(r), "bye\n")
	r = s.call("read_output", args{"vm_name": "web", "process_id": "p1", "offset": 14, "wait_seconds": 30})
	if got := structured[read](t, r); got.Running || got.ExitCode == nil || *got.ExitCode != 2 || got.Output != "" {
		t.Errorf("after the end: %+v", got)
	}
	contains(t, texts(r), "ended with exit status 2")

	s.ok("run_background", args{"vm_name": "web", "cmd": "chatty"})
	s.engine.write("p2", strings.Repeat("y", outputPage+100))
	s.engine.procs["p2"].OutputFrom = 50
	contains(t, s.ok("read_output", args{"vm_name": "web", "process_id": "p2"}), "50 bytes more are there", "50 bytes before are no longer kept")
	if got := s.ok("read_output", args{"vm_name": "web", "process_id": "p2", "offset": outputPage + 100, "wait_seconds": 1}); !strings.Contains(got, "still runs") {
		t.Errorf("after the wait: %q", got)
	}
	contains(t, s.fails("read_output", args{"vm_name": "web", "process_id": "p9"}), "does not exist", "hint: ")
	contains(t, s.fails("read_output", args{"vm_name": "web", "process_id": "p1", "wait_seconds": 61}), "more than 60")
	contains(t, s.fails("run_background", args{"vm_name": "web", "cmd": ""}), "cmd is missing")
}

func TestFiles(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	files := s.engine.boxes["web"].files
	s.ok("upload_file", args{"vm_name": "web", "path": "/etc/a", "content": "AP8=", "encoding": "base64"})
	if !bytes.Equal(files["/etc/a"], []byte{0, 0xff}) {
		t.Errorf("base64 came as %q", files["/etc/a"])
	}
	contains(t, s.fails("upload_file", args{"vm_name": "web", "path": "a", "content": "?", "encoding": "base64"}), "not base64")
	contains(t, s.fails("upload_file", args{"vm_name": "web", "path": "a", "content": "?", "encoding": "gzip"}), "is not base64")
	contains(t, s.fails("upload_file", args{"vm_name": "web", "path": "a", "content": strings.Repeat("x", maxUpload+1)}), "more than 8388608", "hint: ")
	for _, path := range []string{"", "/", "a/", "a\x00", strings.Repeat("a/", 3000) + "a"} {
		s.fails("upload_file", args{"vm_name": "web", "path": path, "content": "x"})
		s.fails("download_file", args{"vm_name": "web", "path": path})
	}

	files["/long"] = []byte(strings.Repeat("ä", 200_000))
	got := s.ok("download_file", args{"vm_name": "web", "path": "/long"})
	contains(t, got, "|[bytes 0 to 262144 of 400000; go on with offset 262144]")
	got = s.ok("download_file", args{"vm_name": "web", "path": "/long", "length": 101})
	if got != strings.Repeat("ä", 50)+"|[bytes 0 to 100 of 400000; go on with offset 100]" {
		t.Errorf("half a character: %q", got)
	}
	if got := s.ok("download_file", args{"vm_name": "web", "path": "/long", "offset": 399_998}); got != "ä" {
		t.Errorf("the end of it: %q", got)
	}
	contains(t, s.ok("download_file", args{"vm_name": "web", "path": "/long", "offset": 400_001}), "ends before, at 400000")
	contains(t, s.fails("download_file", args{"vm_name": "web", "path": "/long", "length": maxDownload + 1}), "more than 1048576")
	files["/empty"] = nil
	if got := s.ok("download_file", args{"vm_name": "web", "path": "/empty"}); got != "" {
		t.Errorf("an empty file: %q", got)
	}
	contains(t, s.fails("download_file", args{"vm_name": "web", "path": "/nothing"}), "no such file")

	files["/blob"] = []byte{0xff, 0, 1}
	blob, ok := s.call("download_file", args{"vm_name": "web", "path": "/blob"}).Content[0].(*sdk.EmbeddedResource)
	if !ok || !bytes.Equal(blob.Resource.Blob, files["/blob"]) || blob.Resource.URI != "sietch://web/blob" {
		t.Errorf("binary content: %+v", blob)
	}
	// A picture is larger than a page and comes whole.
	files["/p.png"] = noisy(t, 400)
	if len(files["/p.png"]) <= downloadPage {
		t.Fatalf("the picture has %d bytes only", len(files["/p.png"]))
	}
	picture, ok := s.call("download_file", args{"vm_name": "web", "path": "/p.png"}).Content[0].(*sdk.ImageContent)
	if !ok || picture.MIMEType != "image/png" || !bytes.Equal(picture.Data, files["/p.png"]) {
		t.Errorf("a picture comes as something else")
	}
}

// noisy is a PNG that cannot be made small.
func noisy(t *testing.T, n int) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, n, n))
	x := uint32(1)
	for i := range m.Pix {
		x = x*1664525 + 1013904223
		m.Pix[i] = byte(x >> 24)
	}
	var buf bytes.Buffer
	if err := png.Encode(&buf, m); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestScreenshot(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	files := s.engine.boxes["web"].files
	files["/display"] = []byte("none")
	contains(t, s.fails("screenshot", args{"vm_name": "web"}), "web has no display", "hint: start one")
	files["/display"] = []byte("bare")
	contains(t, s.fails("screenshot", args{"vm_name": "web"}), "nothing is installed", "hint: install")
	files["/display"] = []byte("say \x89PNG\r\n\x1a\nrest")
	if m, ok := s.call("screenshot", args{"vm_name": "web"}).Content[0].(*sdk.ImageContent); !ok || m.MIMEType != "image/png" {
		t.Errorf("an X display comes as %T", m)
	}
	files["/display"] = []byte("say something else")
	contains(t, s.fails("screenshot", args{"vm_name": "web"}), "no PNG")

	s.engine.dialed = fakeVNC(t)
	for _, in := range []args{{"vm_name": "web"}, {"vm_name": "web", "port": vncPort}} {
		r := s.call("screenshot", in)
		m, ok := r.Content[0].(*sdk.ImageContent)
		if !ok {
			t.Fatalf("a VNC display comes as %s", texts(r))
		}
		p, err := png.Decode(bytes.NewReader(m.Data))
		if err != nil {
			t.Fatal(err)
		}
		if got := color.RGBAModel.Convert(p.At(1, 1)); p.Bounds().Dx() != 2 || got != (color.RGBA{10, 20, 30, 255}) {
			t.Errorf("it shows %v of %v", got, p.Bounds())
		}
	}
	contains(t, s.fails("screenshot", args{"vm_name": "web", "port": 1}), "nothing listens on port 1")
	contains(t, s.fails("screenshot", args{"vm_name": "web", "port": -1}), "not of 1 to 65535")
}

func TestResources(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web.1"})
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 1 || list.Resources[0].URI != "arrakis://vms" {
		t.Fatalf("resources: %+v, %v", list, err)
	}
	templates, err := s.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 1 || templates.ResourceTemplates[0].URITemplate != "arrakis://vm/{vm_name}" {
		t.Fatalf("templates: %+v, %v", templates, err)
	}
	const vm = `{"ip":"10.88.0.2/20","portForwards":[],"status":"RUNNING","tapDeviceName":"tap0","vmName":"web.1"}`
	for uri, want := range map[string]string{"arrakis://vms": `{"vms":[` + vm + `]}`, "arrakis://vm/web.1": vm} {
		r, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		if c := r.Contents[0]; c.Text != want || c.MIMEType != "application/json" || c.URI != uri {
			t.Errorf("%s is %+v, want %s", uri, c, want)
		}
	}
	for _, uri := range []string{"arrakis://vm/none", "arrakis://vm/", "arrakis://other"} {
		if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s can be read", uri)
		}
	}
	s.engine.fail["List"] = &runtime.Error{Kind: runtime.ErrHost, Message: "no root", Hint: "use sudo"}
	if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "arrakis://vms"}); err == nil || !strings.Contains(err.Error(), "no root\nhint: use sudo") {
		t.Errorf("a failing list: %v", err)
	}
}

// TestProgress wants to be told of long calls, with numbers that grow.
func TestProgress(t *testing.T) {
	was := progressEvery
	progressEvery = 20 * time.Millisecond
	t.Cleanup(func() { progressEvery = was })
	f := newFake()
	f.slow = make(chan struct{})
	s := connect(t, f)
	asked := func(token, tool string, in args) *sdk.CallToolParams {
		p := &sdk.CallToolParams{Name: tool, Arguments: in}
		p.SetProgressToken(token)
		return p
	}
	go func() {
		deadline := time.Now().Add(10 * time.Second)
		for s.heard("start") < 4 && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		close(f.slow)
	}()
	if _, err := s.CallTool(t.Context(), asked("start", "start_sandbox", args{"name": "web"})); err != nil {
		t.Fatal(err)
	}
	if s.heard("start") < 4 {
		t.Errorf("start_sandbox told %d times", s.heard("start"))
	}
	if _, err := s.CallTool(t.Context(), asked("fork", "fork", args{"from": "web", "n": 8, "prefix": "try"})); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); s.heard("fork") < 9 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	if s.heard("fork") < 9 {
		t.Errorf("fork of 8 told %d times", s.heard("fork"))
	}
	s.ok("snapshot", args{"vm_name": "web"}) // without a token: silence
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[any]float64{}
	for _, p := range s.told {
		before, begun := last[p.ProgressToken]
		if begun && p.Progress <= before {
			t.Errorf("%v: %f after %f", p.ProgressToken, p.Progress, before)
		}
		last[p.ProgressToken] = p.Progress
		if p.Message == "" {
			t.Errorf("%v says nothing", p.ProgressToken)
		}
	}
	if len(last) != 2 || last["fork"] < 8 {
		t.Errorf("what was told ends with %v", last)
	}
}

func (s *session) heard(token string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.told {
		if p.ProgressToken == token {
			n++
		}
	}
	return n
}

// TestCancel wants a command to end when the model's client no longer waits.
func TestCancel(t *testing.T) {
	s := connect(t, newFake())
	s.ok("start_sandbox", args{"name": "web"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "run_command", Arguments: args{"vm_name": "web", "cmd": "wait"}}); err == nil {
		t.Error("a cancelled call succeeds")
	}
	select {
	case err := <-s.engine.ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the command's context ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the command goes on")
	}
}
