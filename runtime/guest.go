package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// guest is a client of the machine that runs in a sandbox now, for one call or
// a few. When that machine ends, or makes way for an earlier state, so do the
// calls: nobody is left at the other end to close their connections.
type guest struct {
	*line
	engine *Local
	record *record
}

// answerTimeout bounds the wait for a running guest to accept a connection: ten
// seconds, and more on hosts that are said to be slow.
func (e *Local) answerTimeout() time.Duration { return max(10*time.Second, e.opts.BootTimeout/12) }

// guest returns a client of a running sandbox. It takes no lock: talking to a
// guest never waits for other commands.
func (e *Local) guest(ctx context.Context, name string) (*guest, error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	r, err := e.find(name)
	if err != nil {
		return nil, err
	}
	if e.abandoned(r) {
		return nil, notFound("sietch ps -a lists the sandboxes there are", "sandbox %s does not exist", name)
	}
	r = e.completed(ctx, r)
	state, reason := e.stateOf(r)
	switch {
	case state == Running:
	case state == Paused:
		return nil, wrongState("sietch resume "+name, "sandbox %s is paused", name)
	case r.Swap != nil:
		return nil, busy("try again in a moment", "sandbox %s is being checked out", name)
	case reason != "":
		return nil, wrongState("sietch start "+name, "sandbox %s is not running (%s)", name, reason)
	default:
		return nil, wrongState("sietch start "+name, "sandbox %s is not running", name)
	}
	e.unfreeze(ctx, r)
	l, err := e.line(r)
	if err != nil {
		return nil, guestError(name, "reach the guest", err)
	}
	return &guest{line: l, engine: e, record: r}, nil
}

// unfreeze lets a guest go on that a killed commit left paused; a living commit
// holds the lock and is left alone.
func (e *Local) unfreeze(ctx context.Context, r *record) {
	if unix.Access(e.pauseMark(r.ID), unix.F_OK) != nil {
		return
	}
	lock, err := tryLock(e.sandbox(r.ID)+"/lock", unix.LOCK_EX)
	if err != nil {
		return
	}
	defer lock.unlock()
	if err := e.releasePaused(ctx, r); err != nil {
		e.log.Warn("resume after a killed commit", "sandbox", r.Name, "err", err)
	}
}

// Exec runs a command in a sandbox and returns how it ended.
func (e *Local) Exec(ctx context.Context, q ExecRequest, stdio ExecIO) (ExitStatus, error) {
	if err := checkCommand(q); err != nil {
		return ExitStatus{}, err
	}
	c, err := e.guest(ctx, q.Name)
	if err != nil {
		return ExitStatus{}, err
	}
	defer c.Close()
	sio := agent.IO{Stdin: stdio.Stdin, Stdout: stdio.Stdout, Stderr: stdio.Stderr, Signals: stdio.Signals}
	if stdio.Started != nil {
		sio.Started = func(int) { stdio.Started() }
	}
	var detached atomic.Bool
	if q.Detach {
		// It runs on when we leave.
		leave, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx = leave
		sio = agent.IO{Started: func(int) { detached.Store(true); cancel() }}
	}
	if stdio.Resize != nil {
		sizes := make(chan agent.Size)
		sio.Resize = sizes
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go forwardSizes(ctx, stdio.Resize, sizes)
	}
	command := proto.ExecRequest{
		Args: q.Args, Env: q.Env, WorkingDir: q.WorkingDir, User: q.User,
		Stdin: q.Stdin, TTY: q.TTY, Rows: q.Rows, Cols: q.Cols,
		TimeoutMS: q.Timeout.Milliseconds(), Detach: q.Detach,
	}
	st, err := c.Exec(ctx, command, sio)
	if c.goesOn(ctx, err) {
		st, err = c.Exec(ctx, command, sio) // the guest has heard nothing of it yet
	}
	if err != nil && detached.Load() {
		return ExitStatus{}, nil
	}
	if err != nil {
		return ExitStatus{}, c.failed(ctx, "exec", err)
	}
	return exitView(st), nil
}

func forwardSizes(ctx context.Context, from <-chan TTYSize, to chan<- agent.Size) {
	for {
		select {
		case s, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- agent.Size{Rows: s.Rows, Cols: s.Cols}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// failed gives the error of a call its kind, and looks for the reason of a
// silence.
func (g *guest) failed(ctx context.Context, what string, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, agent.ErrUnreachable) && g.engine.stalled(ctx, g.record) {
		if g.engine.goOn(ctx, g.record) {
			return busy("try again", "%s: sandbox %s stood still, most likely because the host's disk was full; it goes on now", what, g.record.Name)
		}
		return wrongState("free some with: sietch gc, or sietch rm", "%s: sandbox %s stands still: %s", what, g.record.Name, stalledReason)
	}
	return guestError(g.record.Name, what, err)
}

// goesOn says whether a call found a guest that stood still on a full disk and
// runs again now, because there is room.
func (g *guest) goesOn(ctx context.Context, err error) bool {
	return errors.Is(err, agent.ErrUnreachable) && ctx.Err() == nil && g.engine.stalled(ctx, g.record) && g.engine.goOn(ctx, g.record)
}

// guestError gives errors of the agent their kind.
func guestError(name, what string, err error) error {
	if err == nil {
		return nil
	}
	var remote *agent.RemoteError
	switch {
	case errors.As(err, &remote):
		// What the guest finds wrong is no wrong use of sietch.
		kinds := map[string]error{"not_found": ErrNotFound, "invalid": ErrState, "not_ready": ErrState, "exists": ErrBusy}
		return &Error{Kind: kinds[remote.Code], Message: fmt.Sprintf("%s in %s: %s", what, name, remote.Message)}
	case errors.Is(err, agent.ErrOutdated):
		return &Error{Kind: ErrState, Message: fmt.Sprintf("%s: the machine of %s was made by an earlier sietch, whose agent cannot do this", what, name),
			Hint: "a new sandbox of the same image can: sietch run"}
	case errors.Is(err, agent.ErrClosed), errors.Is(err, vmm.ErrGone):
		return &Error{Kind: ErrState, Message: fmt.Sprintf("%s: the machine of %s ended or was replaced meanwhile", what, name), Err: err, Hint: "look at sietch ps -a"}
	case errors.Is(err, agent.ErrUnreachable):
		return &Error{Kind: ErrState, Message: fmt.Sprintf("%s: the guest of %s does not answer", what, name), Err: err, Hint: "look at sietch ps and sietch logs " + name}
	}
	return fmt.Errorf("%s in %s: %w", what, name, err)
}
