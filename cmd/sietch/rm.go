package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

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
