package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func commitCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "commit",
		Category:  groupHistory,
		Usage:     "keep a sandbox as it is now",
		ArgsUsage: "NAME",
		Description: `Memory, devices and disk at one instant become a new commit; HEAD, and the
branch it is on, move to it. The sandbox pauses for some milliseconds and goes
on. Prints the commit id.

Examples:
sietch commit -m "dependencies installed" box
sietch commit --disk-only --label stage=3 box`,
		Flags: []cli.Flag{
			text("message,m", "say `MSG` about it"),
			text("author", "name `AUTHOR` (default: user@host)"),
			texts("label", "attach the label `K=V`; repeatable"),
			toggle("disk-only", "leave memory and devices out; a checkout of it boots"),
		},
		Action: func(c *cli.Context) error {
			o := commitOptions{
				name: c.Args().First(), message: c.String("message"), author: c.String("author"),
				labels: c.StringSlice("label"), diskOnly: c.Bool("disk-only"),
			}
			return runCommit(c.Context, e, o)
		},
	}
}

type commitOptions struct {
	name, message, author string
	labels                []string
	diskOnly              bool
}

func runCommit(ctx context.Context, e *env, o commitOptions) error {
	var wrong problems
	r := runtime.CommitRequest{
		Name: o.name, Message: o.message, Author: o.author, DiskOnly: o.diskOnly,
		Labels: parsePairs("--label", o.labels, &wrong),
	}
	if err := wrong.err("see sietch commit --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	commit, err := engine.Commit(ctx, r)
	if err != nil {
		return err
	}
	if commit.Timing != nil {
		e.verbose("%s stood still for %.1f ms; %s stored", o.name, commit.Timing.PauseMS,
			size(commit.Memory.StoredBytes+commit.Disk.StoredBytes))
	}
	return e.result(commit, commit.ID)
}
