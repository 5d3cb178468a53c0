package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/buildkit/client"
)

// engine is a connection to the engine process.
type engine struct {
	*client.Client
	log  string
	lost atomic.Bool // the connection ended from the other side
}

// connect reaches the engine process, starting one when there is none.
func (b *Builder) connect(ctx context.Context) (*engine, error) {
	if os.Geteuid() != 0 {
		return nil, withHint(fmt.Errorf("build images: %w", ErrNotRoot), "run it with sudo")
	}
	dir := engineDir(b.opts.Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start build engine: %w", err)
	}
	// An engine may leave just as we come; then the next round starts one.
	var last error
	for range 5 {
		e, err := b.dial(ctx, dir)
		if err == nil {
			return e, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		last = err
		if err := b.startEngine(ctx, dir); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w does not answer: %w", ErrEngine, last)
}

// dial connects to a running engine and makes sure that it answers.
func (b *Builder) dial(ctx context.Context, dir string) (*engine, error) {
	e := &engine{log: filepath.Join(dir, engineLog)}
	first, err := dialShort(ctx, filepath.Join(dir, engineSocket))
	if err != nil {
		return nil, err
	}
	// One connection is all there is: gRPC must not reconnect behind our back,
	// as the builds of a dead engine are gone.
	conns := make(chan net.Conn, 1)
	conns <- &watchedConn{Conn: first, lost: &e.lost}
	e.Client, err = client.New(ctx, "unix:///sietch", client.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		select {
		case c := <-conns:
			return c, nil
		default:
			e.lost.Store(true)
			return nil, ErrEngine
		}
	}))
	if err != nil {
		first.Close()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := e.Info(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// watchedConn notes when the other side ends the connection.
type watchedConn struct {
	net.Conn
	lost   *atomic.Bool
	closed atomic.Bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !c.closed.Load() {
		c.lost.Store(true)
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// maxEngineLog is where the log of earlier engines is dropped.
const maxEngineLog = 1 << 20

// startEngine starts an engine process in a session of its own, so that a
// terminal's signals do not reach it, and waits until it serves.
func (b *Builder) startEngine(ctx context.Context, dir string) error {
	argv := b.opts.Engine
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("start build engine: %w", err)
		}
		argv = []string{self, EngineCommand}
	}
	logPath := filepath.Join(dir, engineLog)
	mode := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if st, err := os.Stat(logPath); err == nil && st.Size() > maxEngineLog {
		mode |= os.O_TRUNC
	}
	log, err := os.OpenFile(logPath, mode, 0o600)
	if err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	defer r.Close()
	args := append(argv[1:len(argv):len(argv)],
		"--dir", b.opts.Dir,
		"--idle", b.opts.EngineIdle.String(),
		"--cache-limit", strconv.FormatInt(b.opts.CacheLimitBytes, 10),
		"--ready-pipe")
	cmd := exec.Command(argv[0], args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	// It outlives us, or we reap it if we are a server.
	go func() { _ = cmd.Wait() }()
	return awaitReady(ctx, r, logPath)
}

// awaitReady reads the engine's report. The pipe ends with the process, so that
// one that dies is noticed at once.
func awaitReady(ctx context.Context, r *os.File, logPath string) error {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := r.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	var report readiness
	switch err := json.NewDecoder(r).Decode(&report); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return engineFailed("it does not get ready", logPath)
	case err != nil:
		return engineFailed("it ended at once", logPath)
	case report.Error != nil:
		return fmt.Errorf("start build engine: %w", &detailError{detail: report.Error, cause: ErrEngine})
	}
	return nil
}

// engineFailed is the one error for an engine that died, with its last words.
func engineFailed(what, logPath string) error {
	err := fmt.Errorf("%w: %s", ErrEngine, what)
	if tail := readTail(logPath, 2048); tail != "" {
		err = fmt.Errorf("%w; its last words: %s", err, lastLines(tail, 3))
	}
	return withHint(err, "run it again; what the engine said is in "+logPath)
}

func readTail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
