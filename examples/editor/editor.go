// Package editor shows what restoring a running machine means: over MCP, as an
// agent does it, it builds a small editor for several people in a sandbox, lets
// two of them write, takes a snapshot, adds a dark mode (which restarts the
// server and so loses the text), and takes that back: the page is light again,
// the same process still runs, and the text is there.
package editor

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/examples/tools"
)

//go:embed app/server.js
var server string

//go:embed app/index.html
var page string

// Port is where the editor listens in the sandbox.
const Port = 5737

// dark is the page after the change that is taken back.
func dark() string {
	s := strings.Replace(page, `data-theme="light"`, `data-theme="dark"`, 1)
	return strings.Replace(s, "--paper: #fdfcf7; --ink: #222;", "--paper: #16181d; --ink: #e8e6df;", 1)
}

// Options of [Show].
type Options struct {
	Image string // with Node and its package ws, see the Dockerfile here
	Name  string // of the sandbox
	Say   func(format string, args ...any)
}

// Show does it all and fails where anything is not as it is to be. The sandbox is
// destroyed in any case.
func Show(ctx context.Context, t *tools.Tools, o Options) (err error) {
	if _, err := t.Call(ctx, "start_sandbox", tools.Args{"name": o.Name, "image": o.Image}); err != nil {
		return err
	}
	defer func() {
		_, gone := t.Call(context.WithoutCancel(ctx), "destroy_vm", tools.Args{"vm_name": o.Name})
		err = errors.Join(err, gone)
	}()
	s := show{ctx: ctx, Tools: t, Options: o}

	o.Say("an agent writes an editor and starts it in the background")
	if err := s.write("editor/server.js", server); err != nil {
		return err
	}
	if err := s.write("editor/index.html", page); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	port, err := t.Call(ctx, "forward_port", tools.Args{"vm_name": o.Name, "guest_port": Port})
	if err != nil {
		return err
	}
	if s.host = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(port); s.host == "" {
		return fmt.Errorf("forward_port says %q", port)
	}

	o.Say("two people write at http://%s/", s.host)
	written, err := s.twoWrite("Dear all, ", "kind regards")
	if err != nil {
		return err
	}
	before, err := s.state()
	if err != nil {
		return err
	}
	if before.Text != written {
		return fmt.Errorf("the server has %q, and both people %q", before.Text, written)
	}
	if err := s.theme("light"); err != nil {
		return err
	}
	snapshot, err := t.Call(ctx, "snapshot", tools.Args{"vm_name": o.Name})
	if err != nil {
		return err
	}

	o.Say("the agent adds a dark mode and restarts the server: the text is lost")
	if err := s.write("editor/index.html", dark()); err != nil {
		return err
	}
	if _, err := t.Call(ctx, "run_command", tools.Args{"vm_name": o.Name, "cmd": fmt.Sprintf("kill %d && while kill -0 %d 2>/dev/null; do sleep 0.1; done", s.pid, s.pid)}); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	if err := s.theme("dark"); err != nil {
		return err
	}
	wrong, err := s.state()
	if err != nil {
		return err
	}
	if wrong.Text != "" || wrong.Started == before.Started {
		return fmt.Errorf("after the change the same server runs: %+v", wrong)
	}

	o.Say("that was wrong; the machine is put back to the snapshot")
	if _, err := t.Call(ctx, "restore_snapshot", tools.Args{"vm_name": o.Name, "snapshot_id": snapshot}); err != nil {
		return err
	}
	if err := s.theme("light"); err != nil {
		return err
	}
	after, err := s.state()
	if err != nil {
		return err
	}
	if after.Started != before.Started || after.Text != before.Text || after.Version != before.Version {
		return fmt.Errorf("restored is %+v, and was %+v", after, before)
	}
	o.Say("it is light again, the same server runs, and the text is there: %q", after.Text)
	if _, err := s.twoWrite("P.S. ", "see you"); err != nil {
		return fmt.Errorf("after the restore: %w", err)
	}
	o.Say("and the two go on writing")
	return nil
}

type show struct {
	*tools.Tools
	Options
	ctx  context.Context
	host string // where the editor is reached
	pid  int    // of the server in the sandbox
}

func (s *show) write(path, content string) error {
	_, err := s.Call(s.ctx, "upload_file", tools.Args{"vm_name": s.Name, "path": path, "content": content})
	return err
}

// serve starts the server and waits until it listens.
func (s *show) serve() error {
	var started struct {
		ProcessID string `json:"process_id"`
		PID       int    `json:"pid"`
	}
	if err := s.Into(s.ctx, "run_background", tools.Args{"vm_name": s.Name, "cmd": "exec node editor/server.js"}, &started); err != nil {
		return err
	}
	s.pid = started.PID
	said := ""
	for offset := int64(0); !strings.Contains(said, "listening"); {
		var read struct {
			Output     string `json:"output"`
			NextOffset int64  `json:"next_offset"`
			Running    bool   `json:"running"`
		}
		err := s.Into(s.ctx, "read_output", tools.Args{"vm_name": s.Name, "process_id": started.ProcessID, "offset": offset, "wait_seconds": 60}, &read)
		if err != nil {
			return err
		}
		said, offset = said+read.Output, read.NextOffset
		if !read.Running {
			return fmt.Errorf("the server does not run; it says %q", said)
		}
	}
	return nil
}

// document is the server's state.
type document struct {
	Started string `json:"started"`
	Text    string `json:"text"`
	Version int    `json:"version"`
}

func (s *show) state() (d document, err error) {
	body, err := s.get("/state")
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	return d, err
}

func (s *show) theme(want string) error {
	body, err := s.get("/")
	if err != nil {
		return err
	}
	if !strings.Contains(string(body), fmt.Sprintf("data-theme=%q", want)) {
		return fmt.Errorf("the page is not %s", want)
	}
	return nil
}

// get asks the editor; a connection of before a restore is not used again.
func (s *show) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+path, nil)
	if err != nil {
		return nil, err
	}
	r.Close = true
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask the editor: %w", err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the editor for %s: %s", path, a.Status)
	}
	return io.ReadAll(a.Body)
}
