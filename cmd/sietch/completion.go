package main

import (
	_ "embed"

	"github.com/urfave/cli/v2"
)

//go:embed completion/sietch.bash
var bashCompletion string

//go:embed completion/sietch.zsh
var zshCompletion string

//go:embed completion/sietch.fish
var fishCompletion string

func completionCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Category:  groupOther,
		Usage:     "print completion for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `Commands, flags, and the names of sandboxes, images, branches and tags.

Examples:
source <(sietch completion bash)
sietch completion zsh > /usr/local/share/zsh/site-functions/_sietch
sietch completion fish > ~/.config/fish/completions/sietch.fish`,
		Action: func(c *cli.Context) error {
			script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Args().First()]
			if !ok {
				return usageErrorf("see sietch completion --help", "%s is not bash, zsh or fish", quote(c.Args().First()))
			}
			return e.write(script)
		},
	}
}
