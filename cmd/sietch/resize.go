package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func resizeCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "resize",
		Category:  groupSandboxes,
		Usage:     "change what a running sandbox may use",
		ArgsUsage: "NAME",
		Description: `At most what it was made with, at once and without a pause. CPUs are counted in
time, the virtual machine's own work included, so halves are possible. Memory is
taken from what the guest can spare and given to the host; if it has too little
to spare, nothing is changed. Both are part of commits and forks made from then
on; memory is whole again after a cold boot.

Examples:
sietch resize --cpus 0.5 box
sietch resize --memory 256M box`,
		Flags: []cli.Flag{
			text("cpus", "give it `N` CPUs' time"),
			text("memory", "leave it `SIZE` of its memory"),
		},
		Action: func(c *cli.Context) error {
			r := runtime.ResizeRequest{Name: c.Args().First()}
			var wrong problems
			var err error
			if c.IsSet("cpus") {
				r.CPUs, err = parseRatio(c.String("cpus"))
				wrong.note("--cpus", err)
			}
			if c.IsSet("memory") {
				r.MemoryBytes, err = parseSize(c.String("memory"))
				wrong.note("--memory", err)
			}
			if err := wrong.err("see sietch resize --help"); err != nil {
				return err
			}
			return runResize(c.Context, e, r)
		},
	}
}

func runResize(ctx context.Context, e *env, r runtime.ResizeRequest) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	sandbox, err := engine.Resize(ctx, r)
	if err != nil || !e.json {
		return err
	}
	return e.document(sandbox)
}

func reclaimCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "reclaim",
		Category:  groupSandboxes,
		Usage:     "give the memory that guests have free back to the host",
		ArgsUsage: "NAME...",
		Description: `What a guest has used once stays with its virtual machine, even when the guest
has freed it long since. This gives it back; the guest gets it again as soon as
it needs it. It takes about a second for each GiB that is free.

Examples:
sietch reclaim box
sietch reclaim $(sietch ps -q)`,
		Action: func(c *cli.Context) error {
			return runReclaim(c.Context, e, c.Args().Slice())
		},
	}
}

func runReclaim(ctx context.Context, e *env, names []string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, names, func(name string) error {
		r, err := engine.Reclaim(ctx, name)
		switch {
		case err != nil:
			return err
		case e.json:
			return e.object(r)
		}
		e.remark("%s gave %s back and keeps %s to itself", r.Name, size(r.ReclaimedBytes), size(r.PrivateBytes))
		return nil
	})
}
