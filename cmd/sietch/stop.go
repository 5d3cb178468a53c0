package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

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
