package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

// completeCommand answers the scripts of `sietch completion`: it takes the words
// of a command line, the last being the one under the cursor, and prints one
// candidate a line with its description behind a tab. The last line says what
// else would fit: :files, :dirs or :nothing.
func completeCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:            "__complete",
		Usage:           "list what could stand at the end of a command line",
		Hidden:          true,
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return runComplete(c.Context, e, c.Args().Slice())
		},
	}
}

// completeTime is how long a user waits for names.
const completeTime = 2 * time.Second

func runComplete(ctx context.Context, e *env, words []string) error {
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	current := ""
	if n := len(words); n > 0 {
		words, current = words[:n-1], words[n-1]
	}
	a := arranger{app: newApp(e)}
	a.read(words)
	for _, g := range a.global {
		if dir, ok := strings.CutPrefix(g, "--data-dir="); ok {
			e.options.DataDir = dir
		}
	}
	q := completer{env: e, arranger: &a, current: current}
	q.complete(ctx)
	var b strings.Builder
	for _, c := range q.found {
		if strings.HasPrefix(c.value, current) {
			b.WriteString(c.value + "\t" + c.about + "\n")
		}
	}
	return e.write(b.String() + ":" + q.others() + "\n")
}

type candidate struct{ value, about string }

type completer struct {
	*env
	*arranger
	current string
	found   []candidate
	besides string
}

func (q *completer) others() string {
	if q.besides == "" {
		return "nothing"
	}
	return q.besides
}

func (q *completer) add(value, about string) {
	about, _, _ = strings.Cut(about, "\n")
	q.found = append(q.found, candidate{value, about})
}

func (q *completer) complete(ctx context.Context) {
	c := q.command()
	switch {
	case q.unknown:
	case q.pending != nil:
		q.value(ctx, placeholder(q.pending))
	case q.atGuestCommand() && (q.ended || q.inGuestCommand() || !strings.HasPrefix(q.current, "-")):
	case strings.HasPrefix(q.current, "-") && !q.ended:
		q.flags()
	case c == nil:
		q.commands(q.app.Commands)
	case len(c.Subcommands) > 0:
		q.commands(c.Subcommands)
	default:
		specs := argsOf(c)
		i := len(q.args)
		if n := len(specs); n > 0 && i >= n && specs[n-1].repeated {
			i = n - 1
		}
		if i < len(specs) {
			q.value(ctx, specs[i].name)
		}
	}
}

func (q *completer) commands(all []*cli.Command) {
	for _, c := range all {
		if !c.Hidden {
			q.add(c.Name, c.Usage)
		}
	}
}

func (q *completer) flags() {
	flags := q.app.Flags
	if c := q.command(); c != nil {
		flags = append(slices.Clone(c.Flags), flags...)
	}
	for _, f := range flags {
		if !visible(f) || hasName(f, "version") && len(q.path) > 0 {
			continue
		}
		_, about := described(f)
		for _, n := range f.Names() {
			if len(n) > 1 {
				q.add("--"+n, about)
			} else if q.current == "-" || q.current == "-"+n {
				q.add("-"+n, about)
			}
		}
	}
}

var choices = regexp.MustCompile(`^[a-z-]+(\|[a-z-]+)+$`)

// value completes what a placeholder stands for.
func (q *completer) value(ctx context.Context, what string) {
	if choices.MatchString(what) {
		for word := range strings.SplitSeq(what, "|") {
			q.add(word, "")
		}
		return
	}
	of := ""
	if len(q.path) > 0 {
		of = q.path[0].Name
	}
	for kind := range strings.SplitSeq(what, "|") {
		switch {
		case kind == "NAME" && of == "branch":
			q.refs(ctx, runtime.BranchRef)
		case kind == "NAME" && of == "tag":
			q.refs(ctx, runtime.TagRef)
		case kind == "NAME" && q.pending == nil:
			q.sandboxes(ctx, "")
		case kind == "REF":
			q.refs(ctx, runtime.BranchRef)
			q.refs(ctx, runtime.TagRef)
			q.sandboxes(ctx, "")
		case kind == "IMAGE", kind == "NAME[:TAG]":
			q.images(ctx)
		case kind == "NAME:PATH":
			q.sandboxes(ctx, ":")
		case kind == "SRC", kind == "DST":
			q.sandboxes(ctx, ":")
			q.besides = "files"
		case kind == "FILE":
			q.besides = "files"
		case (kind == "DIR" || kind == "CONTEXT") && q.besides == "" && of != "run" && of != "exec":
			q.besides = "dirs"
		case kind == "COMMAND":
			q.commands(q.app.Commands)
		}
	}
}

// Names come from the engine; where it fails there are none, and no word of it.

func (q *completer) sandboxes(ctx context.Context, suffix string) {
	engine, err := q.useLocal(ctx)
	if err != nil {
		return
	}
	all, err := engine.List(ctx, true)
	if err != nil {
		return
	}
	for _, s := range all {
		q.add(s.Name+suffix, "sandbox, "+string(s.State))
	}
}

func (q *completer) refs(ctx context.Context, kind runtime.RefKind) {
	engine, err := q.useLocal(ctx)
	if err != nil {
		return
	}
	all, err := engine.ListRefs(ctx, kind)
	if err != nil {
		return
	}
	for _, r := range all {
		q.add(r.Name, string(kind)+" at "+short(r.Commit))
	}
}

func (q *completer) images(ctx context.Context) {
	engine, err := q.useLocal(ctx)
	if err != nil {
		return
	}
	all, err := engine.ListImages(ctx)
	if err != nil {
		return
	}
	for _, i := range all {
		if i.Name != "" {
			q.add(i.Name+":"+i.Tag, "image "+short(i.ID))
		}
	}
}
