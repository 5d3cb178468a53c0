package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/remote"
)

func main() {
	// What machines remembered is nobody else's. Files that a user is given
	// (cp, image export) get their modes said.
	unix.Umask(0o077)
	e := newEnv(openLocal)
	e.find = findServer
	os.Exit(run(e, os.Args))
}

// openFunc opens the engine. Tests put another one in.
type openFunc func(context.Context, runtime.Options) (runtime.Engine, error)

func openLocal(ctx context.Context, o runtime.Options) (runtime.Engine, error) {
	engine, err := runtime.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return engine, nil
}

// findServer finds the server of a data directory.
func findServer(ctx context.Context, dir string) (runtime.Engine, error) {
	engine, err := remote.Open(ctx, remote.Options{DataDir: dir, Version: thisBuild().Version})
	if err != nil {
		return nil, err
	}
	return engine, nil
}

// run is one command line from beginning to exit code.
func run(e *env, args []string) int {
	// A variable that is there and empty is, to people, one that is not set.
	for _, name := range []string{"SIETCH_DATA_DIR", "SIETCH_VMM", "SIETCH_BOOT_TIMEOUT", "SIETCH_OVERCOMMIT"} {
		if os.Getenv(name) == "" {
			os.Unsetenv(name)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	e.signals = watchSignals(
		func() {
			cancel(errInterrupted)
			e.verbose("undoing what was begun; once more, and sietch leaves at once")
		},
		func() { e.leaveNow(exitInterrupted) },
	)
	defer e.signals.stop()
	// A panic must not leave a raw terminal behind.
	defer e.restore()

	err := e.execute(ctx, newApp(e), args)
	if closed := e.close(); err == nil {
		err = closed
	}
	return e.report(ctx, err)
}

// execute finds out what is asked for and does it.
func (e *env) execute(ctx context.Context, app *cli.App, args []string) error {
	line, err := arrange(app, args[1:])
	e.json, e.quiet = line.json, line.quiet
	switch {
	case line.help:
		return writeHelp(e.out, app, line.path)
	case err != nil:
		return err
	case len(line.path) == 0 || len(line.path[len(line.path)-1].Subcommands) > 0:
		return noCommand(e, app, line.path)
	}
	return app.RunContext(ctx, line.argv(app.Name))
}

// noCommand answers a line that names no command, or a group without its verb:
// what could be asked for, on stderr, because it is not a result.
func noCommand(e *env, app *cli.App, path []*cli.Command) error {
	if !e.json {
		if err := writeHelp(e.err, app, path); err != nil {
			return err
		}
		return exitStatus(exitUsage)
	}
	return usageErrorf("see "+app.Name+" --help", "no command given")
}

// newEnv is the environment of this process.
func newEnv(open openFunc) *env {
	return &env{
		printer: newPrinter(os.Stdout, os.Stderr),
		in:      os.Stdin,
		open:    open,
		environ: os.LookupEnv,
	}
}
