package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func psCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ps",
		Category:    groupSandboxes,
		Usage:       "list sandboxes",
		Description: "Running and paused ones; with -a also those that are stopped or failed. With\n-q, names alone.\n\nExamples:\nsietch ps -a\nsietch rm -f $(sietch ps -aq)",
		Flags:       []cli.Flag{toggle("all,a", "list stopped and failed sandboxes too")},
		Action: func(c *cli.Context) error {
			return runPs(c.Context, e, c.Bool("all"))
		},
	}
}

func runPs(ctx context.Context, e *env, all bool) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	sandboxes, err := engine.List(ctx, all)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(sandboxes)
	}
	var rows [][]string
	var names []string
	for _, s := range sandboxes {
		names = append(names, s.Name)
		rows = append(rows, []string{s.Name, string(s.State), s.Image, headText(s.Head), s.IP, portsText(s.Ports), ago(e.now(), s.Created)})
	}
	if e.quiet {
		return e.names(names)
	}
	return e.table([]string{"NAME", "STATE", "IMAGE", "HEAD", "IP", "PORTS", "CREATED"}, rows)
}

// headText is the branch, or the commit of a detached HEAD.
func headText(h runtime.Head) string {
	if h.Branch != "" {
		return h.Branch
	}
	return short(h.Commit)
}

func portsText(ports []runtime.Port) string {
	var all []string
	for _, p := range ports {
		host := fmt.Sprint(p.Host)
		if p.HostIP != "" && p.HostIP != "0.0.0.0" {
			host = p.HostIP + ":" + host
			if strings.Contains(p.HostIP, ":") {
				host = fmt.Sprintf("[%s]:%d", p.HostIP, p.Host)
			}
		}
		all = append(all, fmt.Sprintf("%s->%d/%s", host, p.Guest, p.Protocol))
	}
	return strings.Join(all, ",")
}
