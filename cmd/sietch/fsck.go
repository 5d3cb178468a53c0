package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

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
