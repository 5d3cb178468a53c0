package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func eventsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "events",
		Category: groupOther,
		Usage:    "show what happened in the data directory",
		Description: `What was made, changed and removed, oldest first, whichever command or server did
it; the last thousands are kept. Each event has an id that grows. With --json an
object a line.

Examples:
sietch events -f
sietch events --after 4711 --json`,
		Flags: []cli.Flag{
			toggle("follow,f", "go on with what happens from now on"),
			text("after", "begin behind event `ID`; -1 leaves out all there are"),
		},
		Action: func(c *cli.Context) error {
			return runEvents(c.Context, e, c.Bool("follow"), c.String("after"))
		},
	}
}

func runEvents(ctx context.Context, e *env, follow bool, after string) error {
	r := runtime.EventsRequest{Follow: follow}
	if after != "" {
		var err error
		if r.After, err = strconv.ParseInt(after, 10, 64); err != nil || r.After < -1 {
			return usageErrorf("see sietch events --help", "--after: %s is not the id of an event", quote(after))
		}
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return engine.Events(ctx, r, func(ev runtime.Event) error {
		if e.json {
			return e.object(ev)
		}
		return e.line("%s", eventText(ev))
	})
}

// eventText is an event on one line: id, time, type and what it is about.
func eventText(ev runtime.Event) string {
	words := []string{fmt.Sprint(ev.ID), ev.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), ev.Type}
	for _, w := range []string{ev.Sandbox, ev.Ref, short(ev.Commit), ev.Image} {
		if w != "" {
			words = append(words, w)
		}
	}
	if ev.Port != nil {
		words = append(words, portsText([]runtime.Port{*ev.Port}))
	}
	return strings.Join(words, "  ")
}
