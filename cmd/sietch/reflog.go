package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func reflogCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "reflog",
		Category:  groupHistory,
		Usage:     "show where the HEAD of a sandbox has been",
		ArgsUsage: "NAME",
		Description: `Newest first; each is a REF: box@{1} is where box was before its last move.

Examples:
sietch reflog box
sietch checkout box box@{1}`,
		Action: func(c *cli.Context) error {
			return runReflog(c.Context, e, c.Args().First())
		},
	}
}

func runReflog(ctx context.Context, e *env, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	entries, err := engine.Reflog(ctx, name)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(entries)
	}
	var lines []string
	for _, r := range entries {
		if e.quiet {
			lines = append(lines, r.Commit)
			continue
		}
		what := r.Action
		if subject, _, _ := strings.Cut(r.Message, "\n"); subject != "" {
			what += ": " + subject
		}
		lines = append(lines, fmt.Sprintf("%s %s@{%d}: %s (%s)", e.paint(yellow, short(r.Commit)), name, r.Index, what, ago(e.now(), r.Time)))
	}
	return e.names(lines)
}
