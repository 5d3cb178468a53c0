package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func gcCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "gc",
		Category:  groupStorage,
		Usage:     "free what nothing needs any more",
		ArgsUsage: "",
		Description: `Commits that no branch, tag, HEAD or reflog reaches, the chunks only they used,
hot dumps beyond their share of the disk, and what crashes left behind.

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
	return e.line("%s %s in the store (%s, %s), %s of hot dumps, %s",
		freed, size(report.FreedBytes), count(report.Commits, "commit"), count(report.Chunks, "chunk"),
		size(report.CachedBytes), leftovers(report.LeftoverDirs))
}

func leftovers(n int) string {
	if n == 1 {
		return "1 leftover directory"
	}
	return fmt.Sprintf("%d leftover directories", n)
}

func fsckCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "fsck",
		Category:  groupStorage,
		Usage:     "read everything that is stored and check it",
		ArgsUsage: "",
		Description: `Every commit, map and chunk is read and held against its hash. Exit code 5 when
something is damaged.

Examples:
sietch fsck --json | jq '.problems'`,
		Action: func(c *cli.Context) error {
			return runFsck(c.Context, e)
		},
	}
}

func runFsck(ctx context.Context, e *env) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	report, err := engine.Fsck(ctx)
	if err != nil {
		return err
	}
	if e.json {
		err = e.document(report)
	} else {
		err = e.names(fsckLines(report))
	}
	if err == nil && len(report.Problems) > 0 {
		err = &runtime.Error{Kind: runtime.ErrCorrupt, Message: "the store is damaged: " + count(len(report.Problems), "problem")}
	}
	return err
}

func fsckLines(report runtime.FsckReport) []string {
	var lines []string
	for _, p := range report.Problems {
		lines = append(lines, p.Object+": "+p.Reason)
		if p.Hint != "" {
			lines = append(lines, "  "+p.Hint)
		}
	}
	return append(lines, fmt.Sprintf("checked %s and %s: %s", count(report.Commits, "commit"), count(report.Chunks, "chunk"), count(len(report.Problems), "problem")))
}

func duCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "du",
		Category:  groupStorage,
		Usage:     "show what the data directory holds",
		ArgsUsage: "",
		Description: `Bytes on disk, by use. The cache is made again from the store when missing, the
build cache by the next build; both are gc's to empty.

Examples:
sietch du --json | jq .store_bytes`,
		Action: func(c *cli.Context) error {
			return runDu(c.Context, e)
		},
	}
}

func runDu(ctx context.Context, e *env) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	u, err := engine.DiskUsage(ctx)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(u)
	}
	var rows [][]string
	var total int64
	for _, r := range []struct {
		use   string
		bytes int64
	}{
		{"images", u.ImagesBytes},
		{"store", u.StoreBytes},
		{"cache", u.CacheBytes},
		{"sandboxes", u.SandboxesBytes},
		{"build cache", u.BuildCacheBytes},
		{"kernel", u.KernelBytes},
	} {
		total += r.bytes
		rows = append(rows, []string{strings.ReplaceAll(r.use, " ", "-"), size(r.bytes)})
	}
	return e.table([]string{"USE", "SIZE"}, append(rows, []string{"total", size(total)}))
}
