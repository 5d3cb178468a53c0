package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

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
