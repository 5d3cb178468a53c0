package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/remote"
)

// env is what a command has of the world: streams, environment, signals, and
// the engine.
type env struct {
	*printer
	in      io.Reader
	environ func(string) (string, bool)
	signals *signals
	open    openFunc
	// find finds the server of a data directory; nil: there is none.
	find func(ctx context.Context, dir string) (runtime.Engine, error)

	options runtime.Options
	own     bool // the options are this command's, not those of a server
	engine  runtime.Engine

	mu      sync.Mutex
	onLeave []func() // newest last
}

// keepStore is how long a command that serves others leaves the store open for
// their next request.
const keepStore = 10 * time.Second

// use returns the engine, opening it when a command first needs it: a wrong
// command line is found out before. Where a server runs on the data directory it
// is the server's, unless this command is told how its own is to be.
func (e *env) use(ctx context.Context) (runtime.Engine, error) {
	if e.engine != nil || e.find == nil || e.own {
		return e.useLocal(ctx)
	}
	engine, err := e.find(ctx, e.options.DataDir)
	switch {
	case err == nil:
		e.engine = engine
		return engine, nil
	case errors.Is(err, remote.ErrOther):
		e.remark("beside the server of %s: %v", e.options.DataDir, err)
	case !errors.Is(err, remote.ErrNone):
		return nil, err
	}
	return e.useLocal(ctx)
}

// useLocal is use for commands that are about this process or this host.
func (e *env) useLocal(ctx context.Context) (runtime.Engine, error) {
	if e.engine != nil {
		return e.engine, nil
	}
	engine, err := e.open(ctx, e.options)
	if err != nil {
		return nil, err
	}
	e.engine = engine
	return engine, nil
}

func (e *env) close() error {
	if e.engine == nil {
		return nil
	}
	engine := e.engine
	e.engine = nil
	return engine.Close()
}

// leave registers what must be put back on every way out of the process, and
// returns the function that does it, once.
func (e *env) leave(undo func()) func() {
	once := sync.OnceFunc(undo)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onLeave = append(e.onLeave, once)
	return once
}

// restore puts everything back.
func (e *env) restore() {
	e.mu.Lock()
	undo := slices.Clone(e.onLeave)
	e.mu.Unlock()
	slices.Reverse(undo)
	for _, u := range undo {
		u()
	}
}

// leaveNow ends the process without waiting for the command.
func (e *env) leaveNow(code int) {
	e.restore()
	os.Exit(code)
}

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// globals reads the flags that every command has.
func (e *env) globals(c *cli.Context) error {
	var wrong problems
	level, ok := logLevels[c.String("log-level")]
	if !ok {
		wrong.add("--log-level: %s is not one of debug, info, warn, error", quote(c.String("log-level")))
	}
	vmm := c.String("vmm")
	if !slices.Contains([]string{"auto", "cloud-hypervisor", "qemu"}, vmm) {
		wrong.add("--vmm: %s is not one of auto, cloud-hypervisor, qemu", quote(vmm))
	}
	dir, err := filepath.Abs(c.String("data-dir"))
	switch {
	case c.String("data-dir") == "":
		wrong.add("--data-dir is empty")
	case err != nil:
		wrong.note("--data-dir", err)
	}
	timeout, err := parseDuration(c.String("boot-timeout"))
	wrong.note("--boot-timeout", err)
	overcommit, err := parseRatio(c.String("overcommit"))
	wrong.note("--overcommit", err)
	if err := wrong.err("see sietch --help"); err != nil {
		return err
	}
	e.own = c.IsSet("vmm") || c.IsSet("boot-timeout") || c.IsSet("overcommit") || level < slog.LevelWarn
	e.options = runtime.Options{
		DataDir:     dir,
		VMM:         vmm,
		Logger:      slog.New(e.logHandler(level)),
		Remark:      func(text string) { e.remark("%s", text) },
		BootTimeout: timeout,
		Overcommit:  overcommit,

		CloudHypervisor: os.Getenv("SIETCH_CLOUD_HYPERVISOR"),
	}
	return nil
}

func (e *env) logHandler(level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if e.json {
		return slog.NewJSONHandler(e.err, o)
	}
	return slog.NewTextHandler(e.err, o)
}

// progress is where a verb reports what it is doing, for people: with --json
// every line on stderr is an object.
func (e *env) progress() io.Writer {
	if e.quiet || e.json {
		return io.Discard
	}
	return e.err
}

// verbose says something only at a terminal, where somebody waits for it.
func (e *env) verbose(format string, args ...any) {
	if e.errTerminal {
		e.remark(format, args...)
	}
}
