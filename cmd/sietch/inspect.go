package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

func inspectCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Category:    groupSandboxes,
		Usage:       "show all about a sandbox, as JSON",
		ArgsUsage:   "NAME",
		Description: "Prints one JSON document, with and without --json.\n\nExamples:\nsietch inspect box | jq -r .ip",
		Action: func(c *cli.Context) error {
			return runInspect(c.Context, e, c.Args().First())
		},
	}
}

func runInspect(ctx context.Context, e *env, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	sandbox, err := engine.Inspect(ctx, name)
	if err != nil {
		return err
	}
	return e.document(sandbox)
}
