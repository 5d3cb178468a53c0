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
