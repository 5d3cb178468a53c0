package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
)

func showCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "show",
		Category:  groupHistory,
		Usage:     "show a commit",
		ArgsUsage: "REF",
		Description: `Where it came from, what it holds, and what it cost to store.

Examples:
sietch show box
sietch show box@{1}
sietch show --json v1 | jq .memory`,
		Action: func(c *cli.Context) error {
			return runShow(c.Context, e, c.Args().First())
		},
	}
}

func runShow(ctx context.Context, e *env, ref string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	c, err := engine.Show(ctx, ref)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(c)
	case e.quiet:
		return e.names([]string{c.ID})
	}
	lines := e.commitHead(c)
	field := func(name, value string) {
		if value != "" {
			lines = append(lines, fmt.Sprintf("%-9s%s", name+":", value))
		}
	}
	if len(c.Parents) == 1 {
		field("Parent", short(c.Parents[0]))
	}
	field("Author", c.Author)
	field("Date", dateText(c.Created))
	field("Branch", c.Branch)
	field("Sandbox", c.Sandbox)
	field("Image", c.Image)
	field("Labels", labelsText(c.Labels))
	field("Kind", c.Kind)
	if c.Memory.SizeBytes > 0 {
		field("Memory", fmt.Sprintf("%s: %s in use, %s changed, %s stored", size(c.Memory.SizeBytes),
			size(c.Memory.ResidentBytes), size(c.Memory.ChangedBytes), size(c.Memory.StoredBytes)))
	}
	field("Disk", fmt.Sprintf("%s: %s changed, %s stored", size(c.Disk.SizeBytes), size(c.Disk.ChangedBytes), size(c.Disk.StoredBytes)))
	lines = append(lines, messageLines(c.Message)...)
	return e.names(lines)
}
