package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Options are what the rest of guestinit gives the agent. The zero value
// serves everybody, starts children itself and is always ready; tests use it.
type Options struct {
	// Env is the environment of the sandbox (K=V, later wins), the base of
	// every exec.
	Env []string
	// DefaultUser and DefaultDir are the image's USER and WORKDIR; an exec that
	// names neither gets these. Empty means root and "/".
	DefaultUser, DefaultDir string

	// Allow says whether a peer may speak. Others are closed before a byte is
	// read from or written to them. Nil allows everybody.
	Allow func(netip.Addr) bool

	// Start starts cmd under the machine's only waiter. It returns the child's
	// pid and a function that blocks until the child has ended and been reaped,
	// which is called exactly once. The agent uses neither cmd.Wait nor
	// cmd.Process, so those may be released. An error is that of cmd.Start,
	// wrapped or not. Nil starts and waits as os/exec does, for a process that
	// is not PID 1.
	Start func(cmd *exec.Cmd) (pid int, wait func() (unix.WaitStatus, error), err error)

	// Main reports the main process. Nil reports none.
	Main func() proto.MainStatus
	// Ready returns nil when an exec would succeed now, else the reason. An
	// error made by [NotYet] says that waiting helps; any other is final and
	// shown as Status.Error. Nil is always ready. It must not block.
	Ready func() error
	// Identify makes this copy of the machine the one described. It runs after
	// inherited streams were detached and before the answer; calls are
	// serialized. Nil accepts and does nothing.
	Identify func(context.Context, proto.Identity) error
	// Shutdown starts a polite power-off and returns at once. Nil answers an
	// error.
	Shutdown func(context.Context) error

	// Logger receives what nobody else is told. Nil discards.
	Logger *slog.Logger
}

// notYet is an error of [Options.Ready] that passes by itself.
type notYet string

func (e notYet) Error() string { return string(e) }

// NotYet is an error for [Options.Ready] saying that the machine is still on
// its way.
func NotYet(reason string) error { return notYet(reason) }
