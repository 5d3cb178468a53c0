package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func checkoutCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "checkout",
		Category:  groupHistory,
		Usage:     "put a sandbox back to a commit, in place",
		ArgsUsage: "NAME REF",
		Description: `The sandbox keeps its name, address and forwarded ports; its memory and disk
become those of REF. The state it had is committed first and stays reachable as
NAME@{1}. HEAD is attached when REF is a branch that no other sandbox has, and
detached otherwise. The name of a sandbox is its HEAD; where a branch of that
name is elsewhere, branch/NAME means the branch.

Examples:
sietch checkout box v1
sietch checkout -b second-try box box~2
sietch checkout box box@{1}`,
		Flags: []cli.Flag{
			text("branch,b", "make the branch `BRANCH` at REF and attach HEAD to it"),
			toggle("no-save", "do not commit the present state: it is lost"),
		},
		Action: func(c *cli.Context) error {
			r := runtime.CheckoutRequest{
				Name: c.Args().Get(0), Ref: c.Args().Get(1),
				NewBranch: c.String("branch"), NoSave: c.Bool("no-save"),
			}
			if c.IsSet("branch") && r.NewBranch == "" {
				return usageErrorf("see sietch checkout --help", "--branch is empty")
			}
			return runCheckout(c.Context, e, r)
		},
	}
}

func runCheckout(ctx context.Context, e *env, r runtime.CheckoutRequest) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	sandbox, err := engine.Checkout(ctx, r)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(sandbox)
	}
	e.remark("%s is at %s", sandbox.Name, whereText(sandbox.Head))
	return nil
}

// whereText says where a HEAD stands: the branch and the commit.
func whereText(h runtime.Head) string {
	if h.Branch == "" {
		return short(h.Commit) + ", detached"
	}
	return h.Branch + " (" + short(h.Commit) + ")"
}
