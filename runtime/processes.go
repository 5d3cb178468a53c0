package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// StartError says that a command cannot be run in a sandbox, as a shell would
// say it: Status has 126 or 127 and the reason.
type StartError struct {
	Sandbox string
	Status  ExitStatus
}

func (e *StartError) Error() string { return e.Status.Error }
func (e *StartError) Unwrap() error { return ErrState }

// checkCommand validates what a command is run with.
func checkCommand(q ExecRequest) error {
	if len(q.Args) == 0 || q.Args[0] == "" {
		return usage("sietch exec NAME -- CMD…", "no command given")
	}
	for _, kv := range q.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
			return usage("", "environment %q is not KEY=VALUE", kv)
		}
	}
	return noNUL(q.Args, q.WorkingDir, q.User)
}

// noNUL refuses what no program could be given.
func noNUL(args []string, workingDir, user string) error {
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return usage("", "argument %.100q contains a NUL byte", a)
		}
	}
	if strings.ContainsRune(workingDir, 0) {
		return usage("", "working directory %.100q contains a NUL byte", workingDir)
	}
	if strings.ContainsRune(user, 0) {
		return usage("", "user %.100q contains a NUL byte", user)
	}
	return nil
}

// StartProcess starts a command that runs on without its caller. A *StartError
// says that the guest cannot run it.
func (e *Local) StartProcess(ctx context.Context, q ExecRequest) (Process, error) {
	if err := checkCommand(q); err != nil {
		return Process{}, err
	}
	if q.TTY || q.Stdin {
		return Process{}, usage("", "a process in the background has no terminal and no stdin")
	}
	c, err := e.guest(ctx, q.Name)
	if err != nil {
		return Process{}, err
	}
	defer c.Close()
	p, err := c.Start(ctx, proto.ExecRequest{
		Args: q.Args, Env: q.Env, WorkingDir: q.WorkingDir, User: q.User, TimeoutMS: q.Timeout.Milliseconds(),
	})
	if cannot, ok := errors.AsType[*agent.StartError](err); ok {
		return Process{}, &StartError{Sandbox: q.Name, Status: exitView(cannot.ExitStatus)}
	}
	if err != nil {
		return Process{}, c.failed(ctx, "start process", err)
	}
	return processView(p), nil
}

// ListProcesses lists the processes in the background of a sandbox.
func (e *Local) ListProcesses(ctx context.Context, name string) ([]Process, error) {
	c, err := e.guest(ctx, name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.Processes(ctx)
	if err != nil {
		return nil, c.failed(ctx, "list processes", err)
	}
	list := make([]Process, len(all))
	for i, p := range all {
		list[i] = processView(p)
	}
	return list, nil
}

// InspectProcess describes one.
func (e *Local) InspectProcess(ctx context.Context, name, id string) (Process, error) {
	return e.aboutProcess(ctx, name, id, "look at process", (*agent.Client).Process)
}

// WaitProcess returns when a process has ended.
func (e *Local) WaitProcess(ctx context.Context, name, id string) (Process, error) {
	return e.aboutProcess(ctx, name, id, "wait for process", (*agent.Client).Wait)
}

func (e *Local) aboutProcess(ctx context.Context, name, id, what string, ask func(*agent.Client, context.Context, string) (proto.Process, error)) (Process, error) {
	var p proto.Process
	err := e.onProcess(ctx, name, id, what, func(c *agent.Client) (err error) {
		p, err = ask(c, ctx, id)
		return err
	})
	if err != nil {
		return Process{}, err
	}
	return processView(p), nil
}

// ProcessOutput writes what a process has written. It never holds the process
// up: with Follow, what a slow w has not taken in time is passed over.
func (e *Local) ProcessOutput(ctx context.Context, q ProcessOutputRequest, w io.Writer) (int64, error) {
	if q.Offset < 0 || q.Limit < 0 {
		return q.Offset, usage("", "offset %d and limit %d: not negative", q.Offset, q.Limit)
	}
	at := q.Offset
	err := e.onProcess(ctx, q.Name, q.ID, "output of process", func(c *agent.Client) (err error) {
		at, err = c.Output(ctx, proto.OutputRequest{ID: q.ID, Offset: q.Offset, Limit: q.Limit, Follow: q.Follow}, w, q.Skipped)
		return err
	})
	return at, err
}

// SignalProcess sends a signal to a process and its group.
func (e *Local) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return usage("", "signal %d is not one of 1 to 64", sig)
	}
	return e.onProcess(ctx, name, id, "signal process", func(c *agent.Client) error { return c.Signal(ctx, id, sig) })
}

// RemoveProcess forgets an ended process.
func (e *Local) RemoveProcess(ctx context.Context, name, id string) error {
	err := e.onProcess(ctx, name, id, "remove process", func(c *agent.Client) error { return c.Forget(ctx, id) })
	if known, ok := errors.AsType[*Error](err); ok && known.Kind == ErrState && known.Hint == "" {
		known.Hint = fmt.Sprintf("end it first: sietch process kill %s %s", name, id)
	}
	return err
}

// onProcess runs fn with a client of the sandbox's guest.
func (e *Local) onProcess(ctx context.Context, name, id, what string, fn func(*agent.Client) error) error {
	if id == "" {
		return usage("sietch process ls "+name, "no process id given")
	}
	c, err := e.guest(ctx, name)
	if err != nil {
		return err
	}
	defer c.Close()
	err = fn(c.Client)
	if remote, ok := errors.AsType[*agent.RemoteError](err); ok && remote.Code == proto.CodeNotFound {
		return notFound("sietch process ls "+name, "process %s does not exist in %s", id, name)
	}
	return c.failed(ctx, what+" "+id, err)
}

func exitView(x proto.ExitStatus) ExitStatus {
	return ExitStatus{Code: x.Code, Signal: x.Signal, Error: x.Error}
}

func processView(p proto.Process) Process {
	v := Process{
		ID: p.ID, Args: p.Args, PID: p.PID, Started: p.Started, Running: p.Running, Ended: p.Ended,
		OutputBytes: p.OutputBytes, OutputFrom: p.OutputFrom,
	}
	if p.Exit != nil {
		v.ExitCode, v.Signal, v.Reason = &p.Exit.Code, p.Exit.Signal, p.Exit.Error
	}
	return v
}
