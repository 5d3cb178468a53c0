package acceptance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// watch wants, at the end of the test, that no sandbox is left and that the host
// shows nothing of this data directory any more.
func (r *repo) watch(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		left := r.try(t, "ps", "-a")
		if t.Failed() {
			// Leave evidence on the screen, not on the host.
			t.Logf("at the end: %s", left)
		}
		var all []string
		for _, s := range r.all(t) {
			all = append(all, s.Name)
		}
		if len(all) > 0 {
			if !t.Failed() {
				t.Errorf("the test left sandboxes: %v", all)
			}
			r.remove(t, all...)
		}
		r.cleanHost(t)
	})
}

// cleanHost wants no trace of this data directory's machines on the host. The
// build engine may take its idle time to go.
func (r *repo) cleanHost(t *testing.T) {
	t.Helper()
	var traces []string
	for deadline := time.Now().Add(within(45 * time.Second)); ; time.Sleep(500 * time.Millisecond) {
		if traces = r.traces(t); len(traces) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(traces) > 0 {
		t.Errorf("left on the host:\n%s", strings.Join(traces, "\n"))
	}
}

// traces lists what the host shows of this data directory: kernel objects carry
// the directory's short hash in their names, everything else its path.
func (r *repo) traces(t *testing.T) []string {
	t.Helper()
	sum := sha256.Sum256([]byte(r.dir))
	instance := hex.EncodeToString(sum[:3])
	ours := func(line string) bool {
		return strings.Contains(line, instance) || strings.Contains(line, r.dir+"/") || strings.HasSuffix(line, r.dir)
	}
	var found []string
	add := func(kind, text string, skip ...string) {
	lines:
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			for _, s := range skip {
				if strings.Contains(line, s) {
					continue lines
				}
			}
			if ours(line) {
				found = append(found, kind+": "+line)
			}
		}
	}
	for pid, line := range processes(t) {
		add("process "+pid, line)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	// The data directory itself may be a mount of the test's.
	add("mount", string(mounts), " "+r.dir+" ")
	add("network namespace", list(t, "/run/netns/*"))
	add("run directory", list(t, "/run/sietch/*/*"))
	add("cgroup", list(t, "/sys/fs/cgroup/*/sietch*/*"))
	for _, tool := range []struct {
		kind string
		args []string
		skip []string
	}{
		{"link", []string{"ip", "-o", "link"}, nil},
		{"address", []string{"ip", "-o", "addr"}, nil},
		{"rule", []string{"nft", "list", "ruleset"}, nil},
		// A loop device whose file is the whole data directory is the test's own.
		{"loop device", []string{"losetup", "-ln", "-O", "NAME,BACK-FILE"}, nil},
	} {
		out, err := exec.Command(tool.args[0], tool.args[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", tool.args, err)
		}
		add(tool.kind, string(out), tool.skip...)
	}
	return found
}

// processes are the command lines of all processes but this one's own.
func processes(t *testing.T) map[string]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil || len(line) == 0 {
			continue // gone, or a kernel thread
		}
		lines[filepath.Base(d)] = string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '}))
	}
	return lines
}

func list(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(paths, "\n")
}
