package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
)

func processCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "process",
		Category: groupSandboxes,
		Usage:    "look after commands in the background",
		Description: `exec -d starts a command in the background and prints its id. The sandbox itself
keeps it and the end of its output (1 MiB at most), so both are part of commits,
and go on in forks and after a checkout. Of those that have ended, the last 64
are remembered.`,
		Subcommands: []*cli.Command{
			processLsCommand(e),
			processInspectCommand(e),
			processLogsCommand(e),
			processWaitCommand(e),
			processKillCommand(e),
			processRmCommand(e),
		},
	}
}

func processLsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Aliases:     []string{"list"},
		Usage:       "list commands in the background",
		ArgsUsage:   "NAME",
		Description: "Oldest first, also those that have ended. With -q, ids alone.\n\nExamples:\nsietch process ls box",
		Action: func(c *cli.Context) error {
			return runProcessLs(c.Context, e, c.Args().First())
		},
	}
}

func runProcessLs(ctx context.Context, e *env, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	list, err := engine.ListProcesses(ctx, name)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(list)
	}
	var rows [][]string
	var ids []string
	for _, p := range list {
		ids = append(ids, p.ID)
		rows = append(rows, []string{p.ID, fmt.Sprint(p.PID), processState(p), size(p.OutputBytes), ago(e.now(), p.Started), commandText(p.Args)})
	}
	if e.quiet {
		return e.names(ids)
	}
	return e.table([]string{"ID", "PID", "STATE", "OUTPUT", "STARTED", "COMMAND"}, rows)
}

func processState(p runtime.Process) string {
	switch {
	case p.Running:
		return "running"
	case p.Signal != 0:
		return "ended by " + signalText(syscall.Signal(p.Signal))
	case p.ExitCode != nil:
		return fmt.Sprintf("ended with %d", *p.ExitCode)
	}
	return "ended"
}

// commandText is a command for one cell of a table: what a guest was told may
// hold anything.
func commandText(args []string) string {
	const most = 60
	var all []string
	for _, a := range args {
		if a == "" || strings.ContainsFunc(a, func(c rune) bool { return c <= ' ' || !strconv.IsPrint(c) || strings.ContainsRune(`'"\$`, c) }) {
			a = strconv.Quote(a)
		}
		all = append(all, a)
	}
	text := []rune(strings.Join(all, " "))
	if len(text) > most {
		text = append(text[:most-1], '…')
	}
	return string(text)
}

func processInspectCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Usage:       "show all about a command in the background, as JSON",
		ArgsUsage:   "NAME ID",
		Description: "Prints one JSON document, with and without --json.\n\nExamples:\nsietch process inspect box cq3h7nxa",
		Action: func(c *cli.Context) error {
			return runProcessInspect(c.Context, e, c.Args().Get(0), c.Args().Get(1))
		},
	}
}

func runProcessInspect(ctx context.Context, e *env, name, id string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	p, err := engine.InspectProcess(ctx, name, id)
	if err != nil {
		return err
	}
	return e.document(p)
}

func processLogsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show what a command in the background has written",
		ArgsUsage: "NAME ID",
		Description: `Its stdout and stderr in the order they were written, as far as they are kept. A
remark on stderr says how much is missing.

Examples:
sietch process logs -f box cq3h7nxa
sietch process logs --offset 4096 --limit 1024 box cq3h7nxa`,
		Flags: []cli.Flag{
			toggle("follow,f", "go on until it ends"),
			text("offset", "begin with byte `N` of all it has written (default: 0)"),
			text("limit", "print `N` bytes at most"),
		},
		Action: func(c *cli.Context) error {
			o := processLogsOptions{name: c.Args().Get(0), id: c.Args().Get(1), follow: c.Bool("follow"), offset: c.String("offset"), limit: c.String("limit")}
			return runProcessLogs(c.Context, e, o)
		},
	}
}

type processLogsOptions struct {
	name, id, offset, limit string
	follow                  bool
}

func runProcessLogs(ctx context.Context, e *env, o processLogsOptions) error {
	var wrong problems
	r := runtime.ProcessOutputRequest{Name: o.name, ID: o.id, Follow: o.follow}
	for _, f := range []struct {
		name, text string
		to         *int64
		least      int64
	}{{"--offset", o.offset, &r.Offset, 0}, {"--limit", o.limit, &r.Limit, 1}} {
		if f.text == "" {
			continue
		}
		n, err := strconv.ParseInt(f.text, 10, 64)
		if err != nil || n < f.least {
			wrong.add("%s: %s is not a number from %d on", f.name, quote(f.text), f.least)
		}
		*f.to = n
	}
	if err := wrong.err("see sietch process logs --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	r.Skipped = func(n int64) { e.remark("its output lacks %s no longer kept", count(n, "byte")) }
	_, err = engine.ProcessOutput(ctx, r, e.out)
	return err
}

func processWaitCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "wait",
		Usage:     "wait for the end of a command in the background",
		ArgsUsage: "NAME ID",
		Description: `Prints its exit code, at once if it has ended: 128+n when signal n ended it, 124
when its --timeout did.

Examples:
sietch process wait box cq3h7nxa`,
		Action: func(c *cli.Context) error {
			return runProcessWait(c.Context, e, c.Args().Get(0), c.Args().Get(1))
		},
	}
}

func runProcessWait(ctx context.Context, e *env, name, id string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	p, err := engine.WaitProcess(ctx, name, id)
	if err != nil {
		return err
	}
	if p.ExitCode == nil {
		return errors.New("its exit code is not known")
	}
	return e.result(p, fmt.Sprint(*p.ExitCode))
}

func processKillCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "kill",
		Usage:     "send a signal to a command in the background",
		ArgsUsage: "NAME ID",
		Description: `The signal goes to the command and its process group. One that has ended is left
alone.

Examples:
sietch process kill box cq3h7nxa
sietch process kill -s HUP box cq3h7nxa`,
		Flags: []cli.Flag{text("signal,s", "send `SIGNAL`, a name or a number (default: TERM)")},
		Action: func(c *cli.Context) error {
			return runProcessKill(c.Context, e, c.Args().Get(0), c.Args().Get(1), c.String("signal"))
		},
	}
}

func runProcessKill(ctx context.Context, e *env, name, id, signal string) error {
	sig, err := parseSignal(signal)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return engine.SignalProcess(ctx, name, id, sig)
}

func parseSignal(s string) (syscall.Signal, error) {
	if s == "" {
		return syscall.SIGTERM, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return syscall.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, usageErrorf("kill -l lists the names of signals", "--signal: %s is no signal", quote(s))
}

func signalText(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

func processRmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Usage:       "forget commands in the background that have ended",
		ArgsUsage:   "NAME ID...",
		Description: "Their output goes too. One that runs is refused.\n\nExamples:\nsietch process rm box cq3h7nxa",
		Action: func(c *cli.Context) error {
			return runProcessRm(c.Context, e, c.Args().First(), c.Args().Tail())
		},
	}
}

func runProcessRm(ctx context.Context, e *env, name string, ids []string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, slices.Clone(ids), func(id string) error {
		if err := engine.RemoveProcess(ctx, name, id); err != nil {
			return err
		}
		return e.removed(id)
	})
}
