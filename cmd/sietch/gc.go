package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
)

func gcCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "gc",
		Category:  groupStorage,
		Usage:     "free what nothing needs any more",
		ArgsUsage: "",
		Description: `Commits that no branch, tag, HEAD or reflog reaches, the chunks only they used,
hot dumps beyond their share of the disk, and what crashes left behind. Chunks
are packed together: a pack is written anew once an eighth of it is unneeded,
until then its space waits.

Examples:
sietch gc --dry-run`,
		Flags: []cli.Flag{toggle("dry-run", "say what would be freed, and free nothing")},
		Action: func(c *cli.Context) error {
			return runGC(c.Context, e, c.Bool("dry-run"))
		},
	}
}

func runGC(ctx context.Context, e *env, dryRun bool) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	report, err := engine.GC(ctx, dryRun)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(report)
	}
	freed := "freed"
	if report.DryRun {
		freed = "would free"
	}
	if err := e.line("%s %s in the store (%s, %s), %s of hot dumps, %s",
		freed, size(report.FreedBytes), count(report.Commits, "commit"), count(report.Chunks, "chunk"),
		size(report.CachedBytes), leftovers(report.LeftoverDirs)); err != nil || report.WaitingBytes == 0 {
		return err
	}
	return e.line("%s more wait, packed together with too much that is still needed", size(report.WaitingBytes))
}

func leftovers(n int) string {
	if n == 1 {
		return "1 leftover directory"
	}
	return fmt.Sprintf("%d leftover directories", n)
}
