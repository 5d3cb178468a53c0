package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime/api"
)

func tokenCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "token",
		Category: groupOther,
		Usage:    "make, list and revoke tokens of the API",
		Description: `Tokens say who may use a server that sietch serve started with the same file. The
file holds only their hashes; a running server notices changes at once.`,
		Subcommands: []*cli.Command{
			tokenCreateCommand(e),
			tokenLsCommand(e),
			tokenRmCommand(e),
		},
	}
}

func tokenFileFlag() cli.Flag {
	return text("token-file", "keep tokens in `FILE` (default: DATA/tokens.json)")
}

func (e *env) tokens(c *cli.Context) (*api.Tokens, error) {
	file := c.String("token-file")
	if file == "" {
		file = e.defaultTokenFile()
	}
	return api.OpenTokens(file)
}

func tokenCreateCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "make a token",
		ArgsUsage: "NAME",
		Description: `Prints the token, which cannot be shown again.

With --label the token sees only sandboxes that have the label, and those it
makes get it; it may neither change images nor see the whole history.

Examples:
sietch token create ci
sietch token create --label team=blue --max-sandboxes 8 blue`,
		Flags: []cli.Flag{
			texts("label", "limit it to sandboxes with the label `K=V`; repeatable"),
			text("max-sandboxes", "let it have `N` sandboxes at a time"),
			tokenFileFlag(),
		},
		Action: func(c *cli.Context) error {
			var wrong problems
			k := api.Token{Name: c.Args().First(), Labels: parsePairs("--label", c.StringSlice("label"), &wrong)}
			if c.IsSet("max-sandboxes") {
				var err error
				k.MaxSandboxes, err = parseCount(c.String("max-sandboxes"), 1)
				wrong.note("--max-sandboxes", err)
			}
			if err := wrong.err("see sietch token create --help"); err != nil {
				return err
			}
			tokens, err := e.tokens(c)
			if err != nil {
				return err
			}
			secret, k, err := tokens.Create(k)
			if err != nil {
				return err
			}
			return e.result(struct {
				tokenView
				Token string `json:"token"`
			}{viewToken(k), secret}, secret)
		},
	}
}

// tokenView is a token without its hash.
type tokenView struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Created      time.Time         `json:"created"`
	Labels       map[string]string `json:"labels"`
	MaxSandboxes int               `json:"max_sandboxes"`
}

func viewToken(k api.Token) tokenView {
	v := tokenView{ID: k.ID, Name: k.Name, Created: k.Created, Labels: k.Labels, MaxSandboxes: k.MaxSandboxes}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	return v
}

func tokenLsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Usage:       "list tokens",
		ArgsUsage:   "",
		Description: "Never the tokens themselves.\n\nExamples:\nsietch token ls",
		Flags:       []cli.Flag{tokenFileFlag()},
		Action: func(c *cli.Context) error {
			tokens, err := e.tokens(c)
			if err != nil {
				return err
			}
			list, err := tokens.List()
			if err != nil {
				return err
			}
			views, rows, names := []tokenView{}, [][]string{}, []string{}
			for _, k := range list {
				views, names = append(views, viewToken(k)), append(names, k.Name)
				rows = append(rows, []string{k.Name, k.ID, pairsText(k.Labels), k.Created.Format(time.DateTime)})
			}
			switch {
			case e.json:
				return e.document(views)
			case e.quiet:
				return e.names(names)
			}
			return e.table([]string{"NAME", "ID", "LIMITED TO", "CREATED"}, rows)
		},
	}
}

func tokenRmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Usage:     "revoke tokens",
		ArgsUsage: "TOKEN...",
		Description: `TOKEN is its name or id. It opens nothing any more, also on a server that runs.

Examples:
sietch token rm ci`,
		Flags: []cli.Flag{tokenFileFlag()},
		Action: func(c *cli.Context) error {
			tokens, err := e.tokens(c)
			if err != nil {
				return err
			}
			return eachOf(c.Context, c.Args().Slice(), func(which string) error {
				if err := tokens.Remove(which); err != nil {
					return err
				}
				return e.removed(which)
			})
		},
	}
}

// pairsText is labels as a line.
func pairsText(labels map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return strings.Join(all, ",")
}
