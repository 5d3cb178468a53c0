package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/runtime"
)

func logsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Category:  groupSandboxes,
		Usage:     "show what a sandbox has printed",
		ArgsUsage: "NAME",
		Description: `The console of the machine (kernel and init) and the output of its main
process, from its first boot on. With --json an object a line: its source,
console or main, and the line.

Examples:
sietch logs -f box
sietch logs --source main --tail 20 box`,
		Flags: []cli.Flag{
			toggle("follow,f", "go on with what is printed from now on"),
			text("source", "`all|console|main` what to show (default: all)"),
			text("tail,n", "show the last `N` lines only"),
		},
		Action: func(c *cli.Context) error {
			o := logsOptions{name: c.Args().First(), follow: c.Bool("follow"), source: c.String("source"), tail: c.String("tail"), hasTail: c.IsSet("tail")}
			return runLogs(c.Context, e, o)
		},
	}
}

type logsOptions struct {
	name, source, tail string
	follow, hasTail    bool
}

func runLogs(ctx context.Context, e *env, o logsOptions) error {
	var wrong problems
	r := runtime.LogsRequest{Name: o.name, Follow: o.follow, Source: o.source}
	if r.Source == "" {
		r.Source = "all"
	}
	if !slices.Contains([]string{"all", "console", "main"}, r.Source) {
		wrong.add("--source: %s is not all, console or main", quote(o.source))
	}
	if o.hasTail {
		var err error
		r.Tail, err = parseCount(o.tail, 1)
		wrong.note("--tail", err)
	}
	if err := wrong.err("see sietch logs --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	if e.json {
		return logObjects(ctx, e, engine, r)
	}
	return engine.Logs(ctx, r, e.out)
}

// logObjects prints an object a line, console and main process side by side.
func logObjects(ctx context.Context, e *env, engine runtime.Engine, r runtime.LogsRequest) error {
	sources := []string{r.Source}
	if r.Source == "all" {
		sources = []string{"console", "main"}
	}
	var g errgroup.Group
	if !r.Follow {
		g.SetLimit(1) // one after the other, as without --json
	}
	var mu sync.Mutex
	for _, source := range sources {
		g.Go(func() error {
			w := &lineWriter{each: func(line []byte) error {
				mu.Lock()
				defer mu.Unlock()
				return e.object(struct {
					Source string `json:"source"`
					Line   string `json:"line"`
				}{source, string(line)})
			}}
			of := r
			of.Source = source
			return errors.Join(engine.Logs(ctx, of, w), w.flush())
		})
	}
	return g.Wait()
}

// maxLineBytes bounds what is kept of a line until its end comes; a longer one
// is taken apart. What a guest prints has no bounds of its own.
const maxLineBytes = 1 << 20

// lineWriter calls each for every line written to it, without its end.
type lineWriter struct {
	each func(line []byte) error
	rest []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, after, ended := bytes.Cut(b, []byte("\n"))
		w.rest = append(w.rest, line...)
		if !ended && len(w.rest) < maxLineBytes {
			return n, nil
		}
		line, w.rest = w.rest, nil
		if err := w.each(bytes.TrimSuffix(line, []byte("\r"))); err != nil {
			return 0, err
		}
		if b = after; !ended {
			return n, nil
		}
	}
}

// flush takes a last line without an end.
func (w *lineWriter) flush() error {
	if len(w.rest) == 0 {
		return nil
	}
	line := w.rest
	w.rest = nil
	return w.each(line)
}
