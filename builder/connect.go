package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/buildkit/client"
)

// engine is a connection to the engine process.
type engine struct {
	*client.Client
	log  logMark
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
	e := &engine{log: markLog(dir)}
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
	mark := markLog(dir)
	mode := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if mark.size > maxEngineLog {
		mode |= os.O_TRUNC
		mark.size = 0
	}
	log, err := os.OpenFile(mark.path, mode, 0o600)
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
	return awaitReady(ctx, r, mark)
}

// awaitReady reads the engine's report. The pipe ends with the process, so that
// one that dies is noticed at once.
func awaitReady(ctx context.Context, r *os.File, log logMark) error {
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
		return engineFailed("it does not get ready", log)
	case err != nil:
		return engineFailed("it ended at once", log)
	case report.Error != nil:
		return fmt.Errorf("start build engine: %w", &detailError{detail: report.Error, cause: ErrEngine})
	}
	return nil
}
