package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func rmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Category:  groupSandboxes,
		Usage:     "remove sandboxes",
		ArgsUsage: "NAME...",
		Description: `Removes the machine, its disk, its address and its ports. Its commits, and the
branches and tags on them, stay. What no branch or tag leads to, such as the
states that checkout saved, goes with the next gc.

Examples:
sietch rm box
sietch rm -f $(sietch ps -aq)`,
		Flags: []cli.Flag{toggle("force,f", "also when it runs; it is switched off. One that does not exist is no error")},
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
		err := engine.Remove(ctx, name, force)
		switch {
		case force && errors.Is(err, runtime.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		return e.removed(name)
	})
}
