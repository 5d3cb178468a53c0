package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func pauseCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "pause",
		Category:    groupSandboxes,
		Usage:       "let sandboxes stand still",
		ArgsUsage:   "NAME...",
		Description: "Nothing in them runs until resume. Pausing a paused one is no error.\n\nExamples:\nsietch pause box",
		Action: func(c *cli.Context) error {
			return runLifecycle(c.Context, e, c.Args().Slice(), runtime.Paused, runtime.Engine.Pause)
		},
	}
}

func resumeCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "resume",
		Category:    groupSandboxes,
		Usage:       "let paused sandboxes run again",
		ArgsUsage:   "NAME...",
		Description: "Resuming a running one is no error.\n\nExamples:\nsietch resume box",
		Action: func(c *cli.Context) error {
			return runLifecycle(c.Context, e, c.Args().Slice(), runtime.Running, runtime.Engine.Resume)
		},
	}
}

func stopCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "stop",
		Category:  groupSandboxes,
		Usage:     "shut sandboxes down",
		ArgsUsage: "NAME...",
		Description: `The guest is asked to shut down and has a while for it; then the machine is
switched off. Its disk stays for start. Stopping a stopped one is no error.

Examples:
sietch stop box
sietch stop --timeout 1m box`,
		Flags: []cli.Flag{text("timeout,t", "switch it off after `DURATION` (default: 10s)")},
		Action: func(c *cli.Context) error {
			return runStop(c.Context, e, c.Args().Slice(), c.String("timeout"), c.IsSet("timeout"))
		},
	}
}

func runStop(ctx context.Context, e *env, names []string, timeout string, given bool) error {
	r := runtime.StopRequest{}
	if given {
		var wrong problems
		var err error
		r.Timeout, err = parseDuration(timeout)
		wrong.note("--timeout", err)
		if err := wrong.err("see sietch stop --help"); err != nil {
			return err
		}
	}
	return runLifecycle(ctx, e, names, runtime.Stopped, func(engine runtime.Engine, ctx context.Context, name string) error {
		r.Name = name
		return engine.Stop(ctx, r)
	})
}

// runLifecycle brings sandboxes into a state, one after the other.
func runLifecycle(ctx context.Context, e *env, names []string, state runtime.State, verb func(runtime.Engine, context.Context, string) error) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, names, func(name string) error {
		if err := verb(engine, ctx, name); err != nil || !e.json {
			return err
		}
		return e.object(struct {
			Name  string        `json:"name"`
			State runtime.State `json:"state"`
		}{name, state})
	})
}

func startCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "start",
		Category:  groupSandboxes,
		Usage:     "boot stopped sandboxes again",
		ArgsUsage: "NAME...",
		Description: `A cold boot on the disk as it was left; the main process starts anew. Returns
when the first exec would succeed, and prints the name. Starting a running one
is no error.

Examples:
sietch start box`,
		Action: func(c *cli.Context) error {
			return runStart(c.Context, e, c.Args().Slice())
		},
	}
}

func runStart(ctx context.Context, e *env, names []string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, names, func(name string) error {
		sandbox, err := engine.Start(ctx, name)
		switch {
		case err != nil:
			return err
		case e.json:
			return e.object(sandbox)
		}
		return e.line("%s", sandbox.Name)
	})
}

func rmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Category:  groupSandboxes,
		Usage:     "remove sandboxes",
		ArgsUsage: "NAME...",
		Description: `Removes the machine, its disk, its address and its ports. Its commits, and the
branches and tags on them, stay.

Examples:
sietch rm box
sietch rm -f $(sietch ps -aq)`,
		Flags: []cli.Flag{toggle("force,f", "also when it runs; it is switched off")},
		Action: func(c *cli.Context) error {
			return runRm(c.Context, e, c.Args().Slice(), c.Bool("force"))
		},
	}
}

func runRm(ctx context.Context, e *env, names []string, force bool) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, names, func(name string) error {
		if err := engine.Remove(ctx, name, force); err != nil {
			return err
		}
		return e.removed(name)
	})
}
