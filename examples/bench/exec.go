package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// execs are the samples of running `true`: by the command, by a request to a
// server, and by a program of the guest's own, which is what the others cannot
// do without.
type execs struct {
	command, rest times
	guest         time.Duration // a median
}

// exec takes them in turns, so that a busy moment of the host is everybody's.
func (b *bench) exec(name string, rounds int) (e execs, err error) {
	out, err := b.run("exec", name, "--", "probe", "spawn", strconv.Itoa(rounds))
	if err != nil {
		return e, err
	}
	ns, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		return e, fmt.Errorf("read answer of probe spawn: %w", err)
	}
	e.guest = time.Duration(ns)
	s, err := b.serve()
	if err != nil {
		return e, err
	}
	defer s.end()
	for i := range rounds + 1 { // the first dials
		began := time.Now()
		if err := s.exec(name, "true"); err != nil {
			return e, err
		}
		rest := time.Since(began)
		_, command, err := b.timed("exec", name, "--", "true")
		if err != nil {
			return e, err
		}
		if i > 0 {
			e.rest.add(rest)
			e.command.add(command)
		}
	}
	return e, nil
}

// server is `sietch serve` on its unix socket.
type server struct {
	cmd    *exec.Cmd
	client http.Client
}

func (b *bench) serve() (*server, error) {
	cmd := exec.Command(b.bin, "--json", "serve", "--listen", "none")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s := &server{cmd: cmd}
	var told struct{ Socket string }
	if err := json.NewDecoder(stdout).Decode(&told); err != nil {
		s.end()
		return nil, fmt.Errorf("start server: %w\n%s", err, stderr.String())
	}
	go io.Copy(io.Discard, stdout)
	s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", told.Socket)
	}}
	return s, nil
}

func (s *server) end() {
	s.client.CloseIdleConnections()
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.cmd.Wait()
}

func (s *server) exec(name string, args ...string) error {
	body, err := json.Marshal(map[string]any{"args": args})
	if err != nil {
		return err
	}
	resp, err := s.client.Post("http://localhost/v1/sandboxes/"+name+"/exec", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var result struct {
		ExitCode *int `json:"exit_code"`
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil || resp.StatusCode != http.StatusOK || result.ExitCode == nil || *result.ExitCode != 0 {
		return fmt.Errorf("exec over the server: %s, %s (%v)", resp.Status, strings.TrimSpace(string(text)), err)
	}
	return nil
}
