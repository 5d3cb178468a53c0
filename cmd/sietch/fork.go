package main

import (
	"context"
	"errors"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func forkCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "fork",
		Category:  groupHistory,
		Usage:     "make live copies of a sandbox or a commit",
		ArgsUsage: "NAME|REF",
		Description: `Each copy is a sandbox of its own, with the memory and the disk of the source:
of its present state when it is a running sandbox, else of the commit. Prints
the names, each as soon as the copy answers; with --json one object a line.

Examples:
sietch fork box
sietch fork -n 8 --name try v1
sietch fork -n 3 --branch --name plan box`,
		Flags: []cli.Flag{
			text("count,n", "make `N` copies (default: 1)"),
			text("name", "call them `PREFIX`-1, PREFIX-2, …, a single one PREFIX (default: from the source's name)"),
			toggle("branch", "give each copy a branch of its own, named like the copy"),
		},
		Action: func(c *cli.Context) error {
			o := forkOptions{
				from: c.Args().First(), count: "1", prefix: c.String("name"),
				hasPrefix: c.IsSet("name"), branch: c.Bool("branch"),
			}
			if c.IsSet("count") {
				o.count = c.String("count")
			}
			return runFork(c.Context, e, o)
		},
	}
}

type forkOptions struct {
	from, count, prefix string
	hasPrefix, branch   bool
}

func runFork(ctx context.Context, e *env, o forkOptions) error {
	var wrong problems
	n, err := parseCount(o.count, 1)
	wrong.note("-n", err)
	if o.hasPrefix && o.prefix == "" {
		wrong.add("--name is empty")
	}
	if err := wrong.err("see sietch fork --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var printing error
	_, err = engine.Fork(ctx, runtime.ForkRequest{From: o.from, N: n, Prefix: o.prefix, Branch: o.branch}, func(f runtime.Fork) {
		mu.Lock()
		defer mu.Unlock()
		if e.json {
			printing = errors.Join(printing, e.object(f))
			return
		}
		printing = errors.Join(printing, e.line("%s", f.Name))
	})
	if err != nil {
		return err
	}
	return printing
}
