package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// Bounds of calls and answers.
const (
	maxForks   = 64
	logDefault = 30
	logMost    = 500
)

type (
	commitIn struct {
		VMName   string `json:"vm_name" jsonschema:"name of the sandbox"`
		Message  string `json:"message,omitempty" jsonschema:"what this state is, for the log"`
		DiskOnly bool   `json:"disk_only,omitempty" jsonschema:"save the disk without the memory: smaller, boots cold"`
	}
	checkoutIn struct {
		VMName    string `json:"vm_name" jsonschema:"sandbox to put back"`
		Ref       string `json:"ref" jsonschema:"branch, tag, sandbox, commit id or unique beginning of one, REF~n, VM@{n}"`
		NewBranch string `json:"new_branch,omitempty" jsonschema:"make this branch there and be on it"`
		NoSave    bool   `json:"no_save,omitempty" jsonschema:"do not save the state it has now: it is lost"`
	}
	forkIn struct {
		From   string `json:"from" jsonschema:"sandbox (its present state), or branch, tag or commit id"`
		N      int    `json:"n,omitempty" jsonschema:"how many copies, 64 at most; 0: one"`
		Prefix string `json:"prefix,omitempty" jsonschema:"copies are called PREFIX-1, PREFIX-2, …; empty: after the source"`
		Branch bool   `json:"branch,omitempty" jsonschema:"give each copy a branch of its own, called like it"`
	}
	logIn struct {
		Ref string `json:"ref,omitempty" jsonschema:"sandbox, branch, tag or commit to begin at; empty: all"`
		N   int    `json:"n,omitempty" jsonschema:"how many commits, 500 at most; 0: 30"`
	}
)

func (t *tools) addHistory(s *sdk.Server) {
	add(s, "commit", "Commit a sandbox", "Saves the whole running sandbox (memory, processes, disk) as a commit on its branch, with a message. It goes on running. "+
		"A snapshot is a commit with a name; this is one with a place in the history.",
		hints{}, t.commit)
	add(s, "checkout", "Check out a commit", "Puts a sandbox back to a commit, in place: same name, address and ports. "+
		"The state it had is saved first and stays reachable as VM@{1}, unless no_save is set.",
		hints{destructive: true}, t.checkout)
	add(s, "fork", "Fork a sandbox", "Makes live copies of a running sandbox or of a commit, each a sandbox of its own with the same memory, processes and files. "+
		"Try several ways at once, keep the best, destroy the others.",
		hints{}, t.fork)
	add(s, "log", "Show the history", "Lists commits and snapshots, newest first, with the branches, tags and sandboxes that are there.",
		hints{readOnly: true}, t.log)
}

// commit is what a model needs to know of one.
type commit struct {
	ID      string   `json:"id"`
	Parents []string `json:"parents"`
	Refs    []string `json:"refs" jsonschema:"branches, tags and sandboxes that are here"`
	Sandbox string   `json:"sandbox"`
	Message string   `json:"message"`
	Author  string   `json:"author"`
	Created string   `json:"created"`
	Kind    string   `json:"kind" jsonschema:"full, or disk"`
}

func commitOf(c runtime.Commit) commit {
	return commit{ID: c.ID, Parents: append([]string{}, c.Parents...), Refs: append([]string{}, c.Refs...), Sandbox: c.Sandbox,
		Message: c.Message, Author: c.Author, Created: c.Created.UTC().Format(time.RFC3339), Kind: c.Kind}
}

func (t *tools) commit(ctx context.Context, r *sdk.CallToolRequest, in commitIn) (*sdk.CallToolResult, commit, error) {
	p := begin(ctx, r, "committing "+in.VMName, 0)
	defer p.stop()
	c, err := t.engine(ctx).Commit(ctx, runtime.CommitRequest{Name: in.VMName, Message: in.Message, DiskOnly: in.DiskOnly})
	if err != nil {
		return nil, commit{}, err
	}
	line := "commit " + c.ID
	if c.Branch != "" {
		line += " on branch " + c.Branch
	}
	if c.Timing != nil {
		line += fmt.Sprintf("; the sandbox stood still for %.0f ms", c.Timing.PauseMS)
	}
	return text(line), commitOf(c), nil
}

func (t *tools) checkout(ctx context.Context, r *sdk.CallToolRequest, in checkoutIn) (*sdk.CallToolResult, any, error) {
	p := begin(ctx, r, "checking out "+in.VMName, 0)
	defer p.stop()
	b, err := t.engine(ctx).Checkout(ctx, runtime.CheckoutRequest{Name: in.VMName, Ref: in.Ref, NewBranch: in.NewBranch, NoSave: in.NoSave})
	if err != nil {
		return nil, nil, err
	}
	line := describe(b)
	if !in.NoSave {
		line += "; what it was before is " + in.VMName + "@{1}"
	}
	return text(line), nil, nil
}

type forks struct {
	Forks []runtime.Fork `json:"forks"`
}

func (t *tools) fork(ctx context.Context, r *sdk.CallToolRequest, in forkIn) (*sdk.CallToolResult, forks, error) {
	n := max(in.N, 1)
	if in.N < 0 || n > maxForks {
		return nil, forks{}, usage(fmt.Sprintf("n is %d: not 1 to %d", in.N, maxForks), "")
	}
	p := begin(ctx, r, "forking "+in.From, n)
	defer p.stop()
	all, err := t.engine(ctx).Fork(ctx, runtime.ForkRequest{From: in.From, N: n, Prefix: in.Prefix, Branch: in.Branch}, func(f runtime.Fork) {
		p.step(f.Name + " is ready")
	})
	out := forks{Forks: append([]runtime.Fork{}, all...)}
	lines := []string{}
	for _, f := range all {
		lines = append(lines, fmt.Sprintf("%s is running, address %s, ready after %.0f ms", f.Name, f.IP, f.ReadyMS))
	}
	if err != nil && len(all) > 0 {
		return nil, out, fmt.Errorf("%d of %d copies are up:\n%s\nbut: %w", len(all), n, strings.Join(lines, "\n"), err)
	}
	if err != nil {
		return nil, out, err
	}
	return text(strings.Join(lines, "\n")), out, nil
}

type history struct {
	Commits []commit `json:"commits"`
}

func (t *tools) log(ctx context.Context, _ *sdk.CallToolRequest, in logIn) (*sdk.CallToolResult, history, error) {
	n := in.N
	if n == 0 {
		n = logDefault
	}
	if n < 0 || n > logMost {
		return nil, history{}, usage(fmt.Sprintf("n is %d: not 1 to %d", in.N, logMost), "")
	}
	list, err := t.engine(ctx).Log(ctx, runtime.LogRequest{Ref: in.Ref, N: n})
	if err != nil {
		return nil, history{}, err
	}
	out := history{Commits: []commit{}}
	lines := []string{}
	for _, c := range list {
		out.Commits = append(out.Commits, commitOf(c))
		lines = append(lines, oneline(c))
	}
	if len(lines) == 0 {
		lines = append(lines, "there is no commit")
	}
	return text(strings.Join(lines, "\n")), out, nil
}

func oneline(c runtime.Commit) string {
	line := short(c.ID)
	if len(c.Refs) > 0 {
		line += " (" + strings.Join(c.Refs, ", ") + ")"
	}
	if c.Kind == "disk" {
		line += " [disk only]"
	}
	title, _, _ := strings.Cut(strings.TrimSpace(c.Message), "\n")
	if title == "" {
		title = "no message"
	}
	return fmt.Sprintf("%s %s (%s, of %s)", line, title, c.Created.UTC().Format("2006-01-02 15:04:05"), c.Sandbox)
}
