package builder

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/moby/buildkit/util/grpcerrors"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Files of DIR/buildkit.
const (
	engineSocket = "engine.sock"
	engineLock   = "engine.lock"
	engineLog    = "engine.log"
	engineState  = "state"
)

func engineDir(dataDir string) string { return filepath.Join(dataDir, "buildkit") }

// readyFD is where an engine that a Builder started reports that it serves, or
// why it does not.
const readyFD = 3

// readiness is the report, one JSON object.
type readiness struct {
	Error *detail `json:"error,omitempty"`
	// Other is set when another engine is already there.
	Other bool `json:"other,omitempty"`
}

// EngineMain hosts the build engine until it has been idle for a while or ctx
// ends. args are what follows EngineCommand on the command line. Only one engine
// runs on a data directory; a second one leaves at once, without an error.
func EngineMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(EngineCommand, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "data directory")
	idle := flags.Duration("idle", defaultEngineIdle, "time without work after which to leave")
	limit := flags.Int64("cache-limit", defaultCacheLimit, "bytes the build cache may take")
	readyPipe := flags.Bool("ready-pipe", false, fmt.Sprintf("descriptor %d is a pipe to report on", readyFD))
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%s: %w", EngineCommand, err)
	}
	if !filepath.IsAbs(*dir) {
		return fmt.Errorf("%s: --dir has to be an absolute path", EngineCommand)
	}
	report := func(readiness) {}
	if *readyPipe { // else the descriptor is somebody else's
		ready := os.NewFile(readyFD, "ready")
		report = func(r readiness) {
			// Who waited may have gone.
			_ = json.NewEncoder(ready).Encode(r)
			_ = ready.Close()
		}
	}
	err := runEngine(ctx, *dir, *idle, *limit, func() { report(readiness{}) })
	if errors.Is(err, errLocked) {
		report(readiness{Other: true})
		return nil
	}
	if err != nil {
		d := &detail{Text: err.Error()}
		if have, ok := detailOf(err); ok {
			d.Kind, d.Hint = have.detail.Kind, have.detail.Hint
		}
		report(readiness{Error: d})
	}
	return err
}

// runEngine does the work of EngineMain. Everything it starts ends before it
// returns.
func runEngine(ctx context.Context, dataDir string, idle time.Duration, cacheLimit int64, ready func()) (err error) {
	if _, err := findTool("runc"); err != nil {
		return err
	}
	// Directories of an image get the modes they ask for, whatever the user's
	// umask is; privacy comes from the mode of the data directory.
	unix.Umask(0o022)
	logrus.SetLevel(logrus.ErrorLevel)
	logrus.SetOutput(os.Stderr)

	dir := engineDir(dataDir)
	state := filepath.Join(dir, engineState)
	temp := filepath.Join(state, "tmp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	unlock, err := lockEngine(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweepEngine(ctx, state); err != nil {
		return err
	}
	for _, d := range []string{state, temp} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("start build engine: %w", err)
		}
	}
	// BuildKit mounts below TMPDIR; there a sweep finds it.
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return fmt.Errorf("start build engine: %w", err)
	}
	s, err := openStore(dataDir, slog.New(slog.NewTextHandler(os.Stderr, nil)), time.Now)
	if err != nil {
		return err
	}
	if err := s.sweep(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stack, err := newSolverStack(ctx, state, s, cacheLimit)
	if err != nil {
		return err
	}
	if err := stack.worker.exporter.forgetResults(); err != nil {
		return errors.Join(err, stack.controller.Close())
	}
	listener, err := listenShort(filepath.Join(dir, engineSocket))
	if err != nil {
		return errors.Join(fmt.Errorf("start build engine: %w", err), stack.controller.Close())
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcerrors.UnaryServerInterceptor),
		grpc.ChainStreamInterceptor(grpcerrors.StreamServerInterceptor),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
	)
	stack.controller.Register(server)
	counted := newCountingListener(listener)
	served := make(chan error, 1)
	go func() { served <- server.Serve(counted) }()
	ready()

	select {
	case err = <-served:
		err = fmt.Errorf("serve builds: %w", err)
	case <-counted.idleFor(ctx, idle):
	case <-ctx.Done():
	}
	// In this order: no new work, end what runs, wait for it a little, then
	// close what it used.
	_ = os.Remove(filepath.Join(dir, engineSocket))
	stopServer(server, ctx.Err() != nil)
	if perr := stack.prune(context.WithoutCancel(ctx)); perr != nil {
		fmt.Fprintln(os.Stderr, "prune build cache:", perr)
	}
	cancel()
	return errors.Join(err, stack.controller.Close())
}

// lockEngine takes the engine lock. Another engine that is on its way out is
// waited for; one that serves gives errLocked.
func lockEngine(ctx context.Context, dir string) (unlock func(), err error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		unlock, err = flock(filepath.Join(dir, engineLock), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, errLocked) || time.Now().After(deadline) {
			return unlock, err
		}
		if c, derr := dialShort(ctx, filepath.Join(dir, engineSocket)); derr == nil {
			c.Close()
			return nil, errLocked
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stopServer lets running builds end when there is time, and cuts them off when
// there is none.
func stopServer(server *grpc.Server, now bool) {
	limit := 5 * time.Second
	if now {
		limit = time.Second
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.GracefulStop()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		server.Stop()
		<-done
	}
}

// countingListener knows how many connections are open, and since when none.
type countingListener struct {
	net.Listener
	mu      sync.Mutex
	open    int
	since   time.Time
	leaving bool // no connection is taken any more
}

func newCountingListener(l net.Listener) *countingListener {
	return &countingListener{Listener: l, since: time.Now()}
}

// Accept implements net.Listener.
func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving {
		// The client notices at its first request and starts another engine.
		// gRPC gets the dead connection and drops it.
		return c, c.Close()
	}
	l.open++
	return &countedConn{Conn: c, closed: sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		l.since = time.Now()
	})}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// idleFor is closed when there was no connection for that long. From then on
// none is accepted, so that no build is lost to the engine's leaving.
func (l *countingListener) idleFor(ctx context.Context, limit time.Duration) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		for {
			l.mu.Lock()
			open, idle := l.open, time.Since(l.since)
			l.leaving = open == 0 && idle >= limit
			leaving := l.leaving
			l.mu.Unlock()
			if leaving {
				return
			}
			wait := limit
			if open == 0 {
				wait = limit - idle
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(max(wait, 10*time.Millisecond), time.Second)):
			}
		}
	}()
	return out
}
