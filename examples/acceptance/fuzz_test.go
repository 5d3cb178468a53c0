package acceptance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// schemathesis makes calls of an OpenAPI document, right ones and wrong ones, and
// holds the answers against it.
var schemathesis = []string{"schemathesis==4.32.5", "hypothesis==6.170.17"}

// notFuzzed need the network, or take away what the other calls need.
var notFuzzed = []string{"pullImage", "bootstrapImage", "arrakisDestroyAllVMs"}

// TestFuzzedAPI: whatever is asked, the server answers as its document says, and
// never with a fault of its own. SIETCH_TEST_FUZZ is how many random calls an
// operation gets beside those at the edges of its schema, SIETCH_TEST_FUZZ_SEED
// what they are drawn from.
func TestFuzzedAPI(t *testing.T) {
	testlane.Need(t, testlane.Python)
	needMachines(t)
	together(t)
	dir := t.TempDir()
	python := filepath.Join(pythonWith(t, filepath.Join(dir, "venv"), testlane.PyPI, schemathesis...), "python")

	r := private(t, filepath.Join(area, "fuzz"))
	t.Cleanup(func() {
		for _, s := range r.all(t) { // what was made on the way
			r.remove(t, s.Name)
		}
	})
	box, spare, stopped := fresh("box"), fresh("box"), fresh("box")
	for _, name := range []string{box, spare, stopped} {
		r.ok(t, "run", "--name", name, "--memory", "128M", "--disk", "128M", "small")
	}
	r.ok(t, "stop", stopped)
	r.commit(t, box, "fuzzed")
	r.ok(t, "tag", "fuzzed", box)
	s := r.serve(t)
	var p struct{ ID string }
	if err := json.Unmarshal([]byte(s.call(t, 201, "POST", "/v1/sandboxes/"+box+"/processes", `{"args":["echo","done"]}`)), &p); err != nil {
		t.Fatal(err)
	}
	have, err := json.Marshal(map[string]string{"sandbox": box, "spare": spare, "stopped": stopped, "process": p.ID, "tag": "fuzzed", "image": "small"})
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-m", "schemathesis.cli", "--config-file", filepath.Join(here, "schemathesis.toml"),
		"run", filepath.Join(here, "../../../runtime/api/openapi.yaml"), "-u", s.url,
		"--no-color", "--phases", "coverage,fuzzing", "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off",
		"--request-timeout", fmt.Sprint(within(60 * time.Second).Seconds()), "--generation-database", "none",
		"-n", setting("SIETCH_TEST_FUZZ", "2"), "--seed", setting("SIETCH_TEST_FUZZ_SEED", "1"),
	}
	for _, op := range notFuzzed {
		args = append(args, "--exclude-operation-id", op)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within(20*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SIETCH_FUZZ_HAVE="+string(have),
		"SCHEMATHESIS_HOOKS=fuzzhooks", "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1", "no_proxy=*")
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, clipped(out, 300))
	}
	t.Logf("the calls took %.0f s, of which their maker computed %.0f", time.Since(began).Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	s.call(t, 200, "GET", "/healthz", "")
	if got := s.call(t, 200, "POST", "/v1/sandboxes/"+box+"/exec", `{"args":["echo","alive"],"workdir":"/"}`); !strings.Contains(got, "alive") {
		t.Errorf("the machine afterwards: %s", got)
	}
	s.stop(t, syscall.SIGTERM)
	s.judgeFuzz(t)
	r.ok(t, "fsck")
}

// judgeFuzz reads in the server's log what it was asked: a call that never
// succeeds tests no more than that it is refused.
func (s *server) judgeFuzz(t *testing.T) {
	t.Helper()
	all, good, took := map[string]int{}, map[string]int{}, map[string]time.Duration{}
	calls := 0
	for line := range bytes.Lines(s.log.Bytes()) {
		var e struct {
			Msg, Route, Panic string
			Status            int
			Took              time.Duration
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if e.Panic != "" {
			t.Errorf("a handler fell over: %s", line)
		}
		if e.Msg != "request" || e.Route == "none" {
			continue
		}
		calls++
		all[e.Route]++
		took[e.Route] += e.Took
		if e.Status < 300 {
			good[e.Route]++
		}
	}
	var never []string
	for route := range all {
		if good[route] == 0 {
			never = append(never, route)
		}
	}
	slices.Sort(never)
	slow := slices.SortedFunc(maps.Keys(took), func(a, b string) int { return cmp.Compare(took[b], took[a]) })
	for _, route := range slow[:min(5, len(slow))] {
		t.Logf("%6.1f s in %d calls of %s", took[route].Seconds(), all[route], route)
	}
	t.Logf("%d calls of %d routes; never successful: %s", calls, len(all), strings.Join(never, ", "))
	if calls < 1500 || len(all) < 75 {
		t.Errorf("only %d calls of %d routes: is the document read?", calls, len(all))
	}
	// What is made up meets nothing that exists; with the names from fuzzhooks.py
	// some three quarters are served.
	if len(never) > len(all)/3 {
		t.Errorf("%d routes were never successful: does fuzzhooks.py still know what there is?", len(never))
	}
}

// pythonWith is the directory of the commands of a Python environment, made in
// dir, with packages from the index. Where they cannot be had, lane is missing.
func pythonWith(t *testing.T, dir, lane string, packages ...string) string {
	t.Helper()
	testlane.Need(t, testlane.Python)
	ctx, cancel := context.WithTimeout(t.Context(), within(10*time.Minute))
	defer cancel()
	// To bring pip along takes longer than all else of an empty one. A copy finds
	// itself by where it is; what is installed into it gets the copy's paths.
	empty := filepath.Join(area, "python")
	emptyPython.Do(func() {
		if out, err := exec.CommandContext(ctx, "python3", "-m", "venv", empty).CombinedOutput(); err != nil {
			t.Fatalf("make environment: %v\n%s", err, out)
		}
	})
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", empty+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("copy environment: %v\n%s", err, out)
	}
	install := append([]string{"-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2"}, packages...)
	if out, err := exec.CommandContext(ctx, filepath.Join(dir, "bin/python"), install...).CombinedOutput(); err != nil {
		testlane.Miss(t, lane, fmt.Errorf("install %s: %w: %s", strings.Join(packages, ", "), err, bytes.TrimSpace(out)))
	}
	return filepath.Join(dir, "bin")
}

var emptyPython sync.Once

func setting(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// clipped cuts long lines, such as those that would repeat an upload.
func clipped(text []byte, n int) string {
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if len(line) > n {
			line = line[:n] + "…\n"
		}
		out.WriteString(line)
	}
	return out.String()
}
