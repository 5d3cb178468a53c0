package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// docsCommand prints the command reference of docs/cli.md from the definition
// of the app, so that the two cannot come apart.
func docsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:   "docs",
		Usage:  "print the reference as Markdown",
		Hidden: true,
		Subcommands: []*cli.Command{{
			Name:   "cli",
			Usage:  "print the sections of docs/cli.md, one a command",
			Hidden: true,
			Action: func(c *cli.Context) error {
				return e.write(reference(newApp(e)))
			},
		}},
	}
}

// reference is one section for sietch itself and for each visible command.
func reference(app *cli.App) string {
	var b strings.Builder
	section := func(path []*cli.Command) {
		title := strings.Join(append([]string{app.Name}, names(path)...), " ")
		b.WriteString("\n## " + title + "\n\n```text\n" + helpText(app, path) + "```\n")
	}
	section(nil)
	var walk func(path, commands []*cli.Command)
	walk = func(path, commands []*cli.Command) {
		for _, c := range commands {
			if c.Hidden || c.Name == "help" { // which shows nothing that is not here
				continue
			}
			here := append(path[:len(path):len(path)], c)
			section(here)
			walk(here, c.Subcommands)
		}
	}
	walk(nil, app.Commands)
	return strings.TrimPrefix(b.String(), "\n")
}
