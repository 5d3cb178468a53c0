package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sietch-dev/sietch/examples/small"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "sdk:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// server is a sietch that serves a data directory of the tests' own, in which
// the small image is called debian:bookworm, so that examples read as they are
// meant.
type server struct {
	url, token, socket string

	bin, dir string
	cmd      *exec.Cmd
	log      bytes.Buffer
}

var (
	shared *server
	start  sync.Once
)

// theServer is the one of all tests, which must leave no sandbox.
func theServer(t *testing.T) *server {
	t.Helper()
	testlane.Need(t, testlane.Root, testlane.BuildKit, testlane.QEMU, testlane.Mirror)
	bin := os.Getenv("SIETCH_BIN")
	if bin == "" {
		bin, _ = filepath.Abs("../bin/sietch")
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skip("no bin/sietch here and SIETCH_BIN not set: run make")
	}
	start.Do(func() {
		// Paths of sockets are short.
		parent := os.Getenv("SIETCH_TEST_DIR")
		if parent == "" {
			parent = "/var/tmp"
		}
		dir, err := os.MkdirTemp(parent, "sdk-")
		if err != nil {
			t.Fatal(err)
		}
		shared = &server{bin: bin, dir: dir, socket: filepath.Join(dir, "serve.sock")}
		shared.begin(t)
	})
	if shared == nil || shared.url == "" {
		t.Fatal("the server did not come up for an earlier test")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server said:\n%s", shared.log.String())
		}
		left, err := shared.sietch("-q", "ps", "-a")
		if err != nil || left != "" {
			t.Errorf("the test left sandboxes: %s (%v)", left, err)
			shared.sietch(append([]string{"rm", "-f"}, strings.Fields(left)...)...)
		}
	})
	return shared
}

// sietch runs a command on the data directory.
func (s *server) sietch(args ...string) (string, error) {
	cmd := exec.Command(s.bin, append([]string{"--data-dir", s.dir}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("sietch %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

func (s *server) begin(t *testing.T) {
	t.Helper()
	context := t.TempDir()
	if err := small.WriteContext(context); err != nil {
		t.Fatal(err)
	}
	if _, err := s.sietch("build", "--progress", "quiet", "-t", "debian:bookworm", context); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.token, err = s.sietch("token", "create", "sdk"); err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(s.bin, "--data-dir", s.dir, "--json", "serve", "--listen", "127.0.0.1:0", "--token-file", filepath.Join(s.dir, "tokens.json"))
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told struct{ Listen []string }
	if err := json.NewDecoder(out).Decode(&told); err != nil || len(told.Listen) != 1 {
		t.Fatalf("serve says %+v (%v)", told, err)
	}
	s.url = told.Listen[0]
}

// stop ends the server politely and removes its data directory.
func (s *server) stop() error {
	var ended error
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Signal(syscall.SIGTERM)
		ended = s.cmd.Wait()
	}
	return errors.Join(ended, os.RemoveAll(s.dir))
}
