package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func branchCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "branch",
		Category:  groupHistory,
		Usage:     "list, make, rename and delete branches",
		ArgsUsage: "[NAME [REF]]",
		UsageText: "[NAME [REF]] | -d NAME | -m OLD NEW",
		Description: `Without arguments, lists them with the sandbox that has each checked out: one at
most. NAME makes a branch at REF; without REF at the HEAD of the sandbox, when
there is exactly one. With -q, names alone.

Examples:
sietch branch
sietch branch good-idea box~1
sietch branch -m good-idea main
sietch branch -d main`,
		Flags: []cli.Flag{
			toggle("delete,d", "delete the branch; its commits stay until gc finds nothing else that needs them"),
			toggle("move,m", "rename branch OLD to NEW"),
		},
		Action: func(c *cli.Context) error {
			o := refOptions{kind: runtime.BranchRef, args: c.Args().Slice(), remove: c.Bool("delete"), rename: c.Bool("move")}
			return runRef(c.Context, e, o)
		},
	}
}

func tagCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "tag",
		Category:  groupHistory,
		Usage:     "list, make and delete tags",
		ArgsUsage: "[NAME [REF]]",
		UsageText: "[NAME [REF]] | -d NAME",
		Description: `A tag is a name for a commit that does not move, and that no branch has. Without
arguments, lists them. NAME makes one at REF; without REF at the HEAD of the
sandbox, when there is exactly one. With -q, names alone.

Examples:
sietch tag v1 box
sietch tag -d v1`,
		Flags: []cli.Flag{toggle("delete,d", "delete the tag")},
		Action: func(c *cli.Context) error {
			o := refOptions{kind: runtime.TagRef, args: c.Args().Slice(), remove: c.Bool("delete")}
			return runRef(c.Context, e, o)
		},
	}
}

type refOptions struct {
	kind           runtime.RefKind
	args           []string
	remove, rename bool
}

// check finds out which form was meant, and whether it is whole.
func (o refOptions) check() error {
	hint := fmt.Sprintf("see sietch %s --help", o.kind)
	switch n := len(o.args); {
	case o.remove && o.rename:
		return usageErrorf(hint, "-d and -m exclude each other")
	case o.remove && n == 0:
		return usageErrorf(hint, "%s -d needs NAME", o.kind)
	case o.remove && n > 1:
		return usageErrorf(hint, "%s -d takes 1 argument: %s is too much", o.kind, quote(o.args[1]))
	case o.rename && n != 2:
		return usageErrorf(hint, "%s -m needs OLD and NEW", o.kind)
	}
	return nil
}

func runRef(ctx context.Context, e *env, o refOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	switch {
	case o.remove:
		if err := engine.DeleteRef(ctx, o.kind, o.args[0]); err != nil {
			return err
		}
		return e.removed(o.args[0])
	case o.rename:
		return renameBranch(ctx, e, engine, o.args[0], o.args[1])
	case len(o.args) == 0:
		return listRefs(ctx, e, engine, o.kind)
	}
	at := ""
	if len(o.args) == 2 {
		at = o.args[1]
	} else if at, err = onlyHead(ctx, engine, o.kind, o.args[0]); err != nil {
		return err
	}
	ref, err := engine.CreateRef(ctx, o.kind, o.args[0], at)
	if err != nil || !e.json {
		return err
	}
	return e.document(ref)
}

func listRefs(ctx context.Context, e *env, engine runtime.Engine, kind runtime.RefKind) error {
	refs, err := engine.ListRefs(ctx, kind)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(refs)
	}
	header := []string{"NAME", "COMMIT", "SANDBOX"}
	columns := len(header)
	if kind == runtime.TagRef { // nobody has a tag checked out
		columns--
	}
	var rows [][]string
	var names []string
	for _, r := range refs {
		names = append(names, r.Name)
		rows = append(rows, []string{r.Name, short(r.Commit), r.Sandbox}[:columns])
	}
	if e.quiet {
		return e.names(names)
	}
	return e.table(header[:columns], rows)
}

func renameBranch(ctx context.Context, e *env, engine runtime.Engine, from, to string) error {
	if err := engine.RenameBranch(ctx, from, to); err != nil || !e.json {
		return err
	}
	refs, err := engine.ListRefs(ctx, runtime.BranchRef)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(refs, func(r runtime.Ref) bool { return r.Name == to })
	if i < 0 {
		return fmt.Errorf("rename branch %s: %s was moved or deleted meanwhile", from, to)
	}
	return e.document(refs[i])
}

// onlyHead is the HEAD of the only sandbox there is. Other than in a work tree,
// nothing says which machine is meant when there are several.
func onlyHead(ctx context.Context, engine runtime.Engine, kind runtime.RefKind, name string) (string, error) {
	sandboxes, err := engine.List(ctx, true)
	if err != nil {
		return "", err
	}
	var names []string
	for _, s := range sandboxes {
		names = append(names, s.Name)
	}
	hint := fmt.Sprintf("name the commit: sietch %s %s REF", kind, name)
	switch len(names) {
	case 0:
		return "", usageErrorf(hint, "there is no sandbox whose HEAD could be meant")
	case 1:
		return names[0], nil
	}
	return "", usageErrorf(hint, "there are %d sandboxes (%s), and any of their HEADs could be meant", len(names), strings.Join(names, ", "))
}
