package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func logsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Category:  groupSandboxes,
		Usage:     "show what a sandbox has printed",
		ArgsUsage: "NAME",
		Description: `The console of the machine (kernel and init) and the output of its main
process, from its first boot on.

Examples:
sietch logs -f box
sietch logs --source main --tail 20 box`,
		Flags: []cli.Flag{
			toggle("follow,f", "go on with what is printed from now on"),
			text("source", "`all|console|main` what to show (default: all)"),
			text("tail,n", "show the last `N` lines only"),
		},
		Action: func(c *cli.Context) error {
			o := logsOptions{name: c.Args().First(), follow: c.Bool("follow"), source: c.String("source"), tail: c.String("tail"), hasTail: c.IsSet("tail")}
			return runLogs(c.Context, e, o)
		},
	}
}

type logsOptions struct {
	name, source, tail string
	follow, hasTail    bool
}

func runLogs(ctx context.Context, e *env, o logsOptions) error {
	var wrong problems
	r := runtime.LogsRequest{Name: o.name, Follow: o.follow, Source: o.source}
	if r.Source == "" {
		r.Source = "all"
	}
	if !slices.Contains([]string{"all", "console", "main"}, r.Source) {
		wrong.add("--source: %s is not all, console or main", quote(o.source))
	}
	if o.hasTail {
		var err error
		r.Tail, err = parseCount(o.tail, 1)
		wrong.note("--tail", err)
	}
	if err := wrong.err("see sietch logs --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return engine.Logs(ctx, r, e.out)
}
