package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func portCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "port",
		Category: groupSandboxes,
		Usage:    "forward ports of the host to a sandbox that is there",
		Description: `What run -p does for a new sandbox, at any time. Forwarded ports work from
outside, from the host's own addresses and from 127.0.0.1; they stay through
checkout, stop and start, and are free again with rm.`,
		Subcommands: []*cli.Command{portLsCommand(e), portAddCommand(e), portRmCommand(e)},
	}
}

func portLsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Aliases:     []string{"list"},
		Usage:       "list forwarded ports",
		ArgsUsage:   "NAME",
		Description: "In the order they were added.\n\nExamples:\nsietch port ls box",
		Action: func(c *cli.Context) error {
			return runPortLs(c.Context, e, c.Args().First())
		},
	}
}

func runPortLs(ctx context.Context, e *env, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	s, err := engine.Inspect(ctx, name)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(s.Ports)
	}
	var rows [][]string
	for _, p := range s.Ports {
		host, _, _ := strings.Cut(portsText([]runtime.Port{p}), "->")
		rows = append(rows, []string{host, fmt.Sprint(p.Guest), p.Protocol})
	}
	return e.table([]string{"HOST", "GUEST", "PROTOCOL"}, rows)
}

func portAddCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "add",
		Usage:     "forward a port of the host to a sandbox",
		ArgsUsage: "NAME [[IP:]HOST:]GUEST[/udp]",
		Description: `Without HOST, a free port of the host is taken. Prints the port of the host. Of a
stopped sandbox it is forwarded from the next start on.

Examples:
sietch port add box 8080:80
sietch port add box 127.0.0.1::80
sietch port add box 5901`,
		Action: func(c *cli.Context) error {
			return runPortAdd(c.Context, e, c.Args().Get(0), c.Args().Get(1))
		},
	}
}

func runPortAdd(ctx context.Context, e *env, name, word string) error {
	p, err := parseNewPort(word)
	if err != nil {
		return usageErrorf("see sietch port add --help", "%v", err)
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	added, err := engine.AddPort(ctx, name, p)
	if err != nil {
		return err
	}
	return e.result(added, fmt.Sprint(added.Host))
}

// parseNewPort reads [[IP:]HOST:]GUEST[/tcp|/udp]; an empty HOST is a free one.
func parseNewPort(s string) (runtime.Port, error) {
	ports, protocol, given := strings.Cut(s, "/")
	if given {
		protocol = "/" + protocol
	}
	host, guest := "", ports
	if i := strings.LastIndexByte(ports, ':'); i >= 0 {
		host, guest = ports[:i], ports[i+1:]
	}
	// Anything stands for the port that is to be found.
	switch i := strings.LastIndexByte(host, ':'); {
	case host == "":
		host = "1"
	case i >= 0 && host[i+1:] == "":
		host += "1"
	default:
		return parsePort(s)
	}
	p, err := parsePort(host + ":" + guest + protocol)
	if err != nil {
		return p, fmt.Errorf("%s is not [[IP:]HOST:]GUEST, such as 80 or 8080:80", quote(s))
	}
	p.Host = 0
	return p, nil
}

func portRmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Usage:       "end the forwarding of a port",
		ArgsUsage:   "NAME [IP:]HOST[/udp]",
		Description: "Connections that go through it stay until one end closes them. What port ls\nprints, and run -p takes, is understood too.\n\nExamples:\nsietch port rm box 8080",
		Action: func(c *cli.Context) error {
			return runPortRm(c.Context, e, c.Args().Get(0), c.Args().Get(1))
		},
	}
}

func runPortRm(ctx context.Context, e *env, name, word string) error {
	p, err := parseHostPort(word)
	if err != nil {
		return usageErrorf("see sietch port rm --help", "%v", err)
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	if err := engine.RemovePort(ctx, name, p); err != nil {
		return err
	}
	return e.removed(word)
}

// parseHostPort reads [IP:]HOST[:GUEST][/tcp|/udp].
func parseHostPort(s string) (runtime.Port, error) {
	if p, err := parsePort(s); err == nil {
		return p, nil
	}
	ports, protocol, given := strings.Cut(s, "/")
	if given {
		protocol = "/" + protocol
	}
	p, err := parsePort(ports + ":1" + protocol)
	if err != nil {
		return p, fmt.Errorf("%s is not [IP:]HOST, such as 8080 or 127.0.0.1:8080", quote(s))
	}
	p.Guest = 0
	return p, nil
}
