package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// converse FILE COMMAND… says the lines of a file to a command, waiting for the
// answer of each that asks for one, and then nothing more. Everything that the
// command says on stdout must be JSON, a message a line.
func converse(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: converse FILE COMMAND...")
	}
	cmd := exec.Command(inPath(ts, args[1]), args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"SIETCH_DATA_DIR", "TZ", "NO_COLOR", "PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stderr = ts.Stderr()
	in, err := cmd.StdinPipe()
	ts.Check(err)
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() { cmd.Process.Kill() })
	answers := bufio.NewScanner(out)
	answers.Buffer(nil, 1<<20)
	type message struct {
		ID *json.Number `json:"id"`
	}
	hear := func() (m message, ok bool) {
		if !answers.Scan() {
			return m, false
		}
		if err := json.Unmarshal(answers.Bytes(), &m); err != nil {
			ts.Fatalf("stdout has %q: %v", answers.Text(), err)
		}
		_, err := io.WriteString(ts.Stdout(), answers.Text()+"\n")
		ts.Check(err)
		return m, true
	}
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var asked message
		ts.Check(json.Unmarshal([]byte(line), &asked))
		_, err := io.WriteString(in, line)
		ts.Check(err)
		for asked.ID != nil {
			m, ok := hear()
			if !ok {
				ts.Fatalf("no answer to %s", line)
			}
			if m.ID != nil && *m.ID == *asked.ID {
				break
			}
		}
	}
	ts.Check(in.Close())
	for {
		if _, ok := hear(); !ok {
			break
		}
	}
	ts.Check(answers.Err())
	ts.Check(cmd.Wait())
}

// inPath finds a command where the script would.
func inPath(ts *testscript.TestScript, name string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	ts.Fatalf("%s is not in PATH", name)
	return ""
}
