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
