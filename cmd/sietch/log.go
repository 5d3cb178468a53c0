package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/cmd/sietch/internal/graph"
	"github.com/sietch-dev/sietch/runtime"
)

func logCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "log",
		Category:  groupHistory,
		Usage:     "show history",
		ArgsUsage: "[REF|NAME]",
		Description: `The commits that led to REF, or to every branch, tag and HEAD, newest first.
Behind each stand the names that point to it: box@ is the HEAD of sandbox box,
box@ -> main says that it is on branch main.

Examples:
sietch log --graph --oneline
sietch log -n 5 box
sietch log --json main | jq -r '.[].id'`,
		Flags: []cli.Flag{
			toggle("graph", "draw which commit came from which"),
			toggle("oneline", "one line a commit"),
			text("max-count,n", "show at most `N` commits"),
		},
		Action: func(c *cli.Context) error {
			o := logOptions{ref: c.Args().First(), graph: c.Bool("graph"), oneline: c.Bool("oneline"), count: c.String("max-count"), hasCount: c.IsSet("max-count")}
			return runLog(c.Context, e, o)
		},
	}
}

type logOptions struct {
	ref, count               string
	graph, oneline, hasCount bool
}

func runLog(ctx context.Context, e *env, o logOptions) error {
	r := runtime.LogRequest{Ref: o.ref}
	if o.hasCount {
		var wrong problems
		var err error
		r.N, err = parseCount(o.count, 1)
		wrong.note("-n", err)
		if err := wrong.err("see sietch log --help"); err != nil {
			return err
		}
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	commits, err := engine.Log(ctx, r)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(commits)
	case e.quiet:
		var ids []string
		for _, c := range commits {
			ids = append(ids, c.ID)
		}
		return e.names(ids)
	}
	entry := e.logEntry
	if o.oneline {
		entry = func(c runtime.Commit) []string { return []string{e.logLine(c)} }
	}
	if o.graph {
		return e.write(drawLog(commits, entry, !o.oneline))
	}
	return e.write(listLog(commits, entry, !o.oneline))
}

// logLine is a commit under --oneline.
func (e *env) logLine(c runtime.Commit) string {
	subject, _, _ := strings.Cut(c.Message, "\n")
	parts := []string{e.paint(yellow, short(c.ID))}
	if d := e.decoration(c.Refs); d != "" {
		parts = append(parts, d)
	}
	return strings.TrimRight(strings.Join(append(parts, subject), " "), " ")
}

// logEntry is a commit as git log shows it.
func (e *env) logEntry(c runtime.Commit) []string {
	lines := e.commitHead(c)
	lines = append(lines, "Author: "+c.Author, "Date:   "+dateText(c.Created))
	return append(lines, messageLines(c.Message)...)
}

// commitHead begins an entry: the id with its names, and more than one parent.
func (e *env) commitHead(c runtime.Commit) []string {
	head := e.paint(yellow, "commit "+c.ID)
	if d := e.decoration(c.Refs); d != "" {
		head += " " + d
	}
	lines := []string{head}
	if len(c.Parents) > 1 {
		merge := "Merge: "
		for i, p := range c.Parents {
			merge += strings.Repeat(" ", min(i, 1)) + short(p)
		}
		lines = append(lines, merge)
	}
	return lines
}

func messageLines(message string) []string {
	if strings.TrimSpace(message) == "" {
		return nil
	}
	lines := []string{""}
	for line := range strings.SplitSeq(strings.TrimRight(message, "\n"), "\n") {
		lines = append(lines, strings.TrimRight("    "+line, " "))
	}
	return lines
}

func listLog(commits []runtime.Commit, entry func(runtime.Commit) []string, spaced bool) string {
	var b strings.Builder
	for i, c := range commits {
		if spaced && i > 0 {
			b.WriteByte('\n')
		}
		for _, line := range entry(c) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// drawLog puts the graph beside the entries.
func drawLog(commits []runtime.Commit, entry func(runtime.Commit) []string, spaced bool) string {
	byID := make(map[string]runtime.Commit, len(commits))
	nodes := make([]graph.Node, len(commits))
	for i, c := range commits {
		byID[c.ID] = c
		nodes[i] = graph.Node{ID: c.ID, Parents: c.Parents}
	}
	var b strings.Builder
	var drawing graph.Drawing
	ordered := graph.Order(nodes)
	for i, n := range ordered {
		text := entry(byID[n.ID])
		if spaced && i < len(ordered)-1 {
			text = append(text, "")
		}
		lanes := []string{drawing.Commit(n)}
		for range text[1:] {
			lanes = append(lanes, drawing.Next())
		}
		// The text of one commit stays in one column, however its lanes move.
		width := 0
		for _, l := range lanes {
			width = max(width, len(l))
		}
		for j := range text {
			b.WriteString(strings.TrimRight(fmt.Sprintf("%-*s %s", width, lanes[j], text[j]), " ") + "\n")
		}
		if i < len(ordered)-1 {
			for _, l := range drawing.Rest() {
				b.WriteString(l + "\n")
			}
		}
	}
	return b.String()
}

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
