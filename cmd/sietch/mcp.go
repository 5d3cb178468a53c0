package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime/api/mcp"
)

func mcpCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "mcp",
		Category:  groupOther,
		Usage:     "offer everything to a language model, on stdin and stdout",
		ArgsUsage: "",
		Description: `Speaks the Model Context Protocol on stdin and stdout until stdin ends. Clients
such as Claude Desktop and Claude Code start it themselves; docs/mcp.md says how.
The tools are those of Arrakis' MCP server, and the history: commit, checkout,
fork and log. Sandboxes outlive it.

sietch serve offers the same at /mcp, for clients elsewhere.

Examples:
sietch mcp
sietch mcp --default-image agent`,
		Flags: []cli.Flag{
			text("default-image", "`IMAGE` that start_sandbox boots when it names none (default: debian:bookworm)"),
		},
		Action: func(c *cli.Context) error {
			return runMCP(c.Context, e, c.String("default-image"))
		},
	}
}

func runMCP(ctx context.Context, e *env, image string) error {
	e.options.KeepStore = keepStore
	engine, err := e.useLocal(ctx)
	if err != nil {
		return err
	}
	return mcp.ServeStdio(ctx, engine, mcp.Options{Version: thisBuild().Version, Logger: e.options.Logger, DefaultImage: image}, e.in, e.out)
}
