package main

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func execCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Category:  groupSandboxes,
		Usage:     "run a command in a sandbox",
		ArgsUsage: "NAME -- CMD...",
		Description: `The command's stdout, stderr and exit code become those of sietch exec: 126 when
it cannot be executed, 127 when it is not found, 124 when --timeout ended it,
128+n when signal n did. SIGINT, SIGTERM, SIGQUIT, SIGUSR1 and SIGUSR2 are
passed on to it; three in a second end sietch itself. When sietch fails, it says
so on stderr and ends with its own codes (1 to 5).

Everything behind CMD belongs to the command; "--" may be left out.

Examples:
sietch exec box -- uname -a
sietch exec -it box bash
tar -c . | sietch exec -i -w /srv box -- tar -x
sietch exec --timeout 30s -u nobody -e LEVEL=3 box -- make test
sietch exec -d box -- python3 -m http.server`,
		Flags: []cli.Flag{
			toggle("interactive,i", "pass stdin on"),
			toggle("tty,t", "give it a terminal"),
			texts("env,e", "set the variable `K=V`; K alone takes it from the environment; repeatable"),
			texts("env-file", "set the variables in `FILE`, lines of K=V; repeatable"),
			text("workdir,w", "start in directory `DIR`"),
			text("user,u", "run as `USER[:GROUP]`"),
			text("timeout", "end it after `DURATION`, such as 90s or 5m"),
			toggle("detach,d", "return as soon as it runs, print its id and leave it running; see sietch process"),
		},
		Action: func(c *cli.Context) error {
			o := execOptions{
				name: c.Args().First(), args: c.Args().Tail(), stdin: c.Bool("interactive"), tty: c.Bool("tty"),
				env: c.StringSlice("env"), envFiles: c.StringSlice("env-file"), workdir: c.String("workdir"),
				user: c.String("user"), timeout: c.String("timeout"), hasTimeout: c.IsSet("timeout"), detach: c.Bool("detach"),
			}
			return runExec(c.Context, e, o)
		},
	}
}

type execOptions struct {
	name, workdir, user, timeout   string
	args, env, envFiles            []string
	stdin, tty, detach, hasTimeout bool
}

func runExec(ctx context.Context, e *env, o execOptions) error {
	request, err := o.request(e)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	if o.detach {
		return execDetached(ctx, e, engine, request)
	}
	stdio := runtime.ExecIO{Stdout: e.out, Stderr: e.err}
	if o.stdin {
		stdio.Stdin = e.in
	}
	if o.tty {
		terminal, err := e.attachTerminal(o.stdin)
		if err != nil {
			return err
		}
		defer terminal.detach()
		request.Rows, request.Cols = terminal.size.Rows, terminal.size.Cols
		stdio.Resize = terminal.resized
	}
	// Until the command runs, signals mean this process.
	arrived := make(chan syscall.Signal, 16)
	end := func() {}
	defer func() { end() }()
	stdio.Signals = arrived
	stdio.Started = func() { end = e.signals.forward(arrived) }
	status, err := engine.Exec(ctx, request, stdio)
	switch {
	case err != nil:
		return err
	case status.Error != "":
		e.tell(explained{Code: "exec", Message: status.Error})
	}
	if status.Code != 0 {
		return exitStatus(status.Code)
	}
	return nil
}

// execDetached leaves a command to the sandbox.
func execDetached(ctx context.Context, e *env, engine runtime.Engine, r runtime.ExecRequest) error {
	p, err := engine.StartProcess(ctx, r)
	if cannot, ok := errors.AsType[*runtime.StartError](err); ok {
		e.tell(explained{Code: "exec", Message: cannot.Error()})
		return exitStatus(cannot.Status.Code)
	}
	if err != nil {
		return err
	}
	return e.result(p, p.ID)
}

func (o execOptions) request(e *env) (runtime.ExecRequest, error) {
	var wrong problems
	r := runtime.ExecRequest{
		Name: o.name, Args: o.args, WorkingDir: o.workdir, User: o.user,
		Stdin: o.stdin, TTY: o.tty,
	}
	r.Env = append(e.parseEnvFiles(o.envFiles, &wrong), e.parseEnv("-e", o.env, &wrong)...)
	if len(o.args) > 0 && o.args[0] == "" {
		wrong.add("CMD is empty")
	}
	if o.hasTimeout {
		var err error
		r.Timeout, err = parseDuration(o.timeout)
		wrong.note("--timeout", err)
	}
	switch {
	case o.detach && (o.stdin || o.tty):
		wrong.add("-d leaves nothing to be interactive with: drop -i and -t")
	case o.tty && o.stdin && !e.isTerminal(e.in):
		wrong.add("-it needs a terminal, and stdin is none: drop -t")
	}
	if o.tty {
		r.Env = append([]string{"TERM=" + e.terminalName()}, r.Env...)
	}
	return r, wrong.err("see sietch exec --help")
}

// terminalName is what programs in the guest take the terminal for.
func (e *env) terminalName() string {
	if name, ok := e.environ("TERM"); ok && strings.TrimSpace(name) != "" {
		return name
	}
	return "xterm"
}
