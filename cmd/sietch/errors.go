package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
)

// Exit codes, a contract with scripts. An exec ends with its command's own code.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitBusy        = 4
	exitCorrupt     = 5
	exitInterrupted = 130
	exitPipe        = 141 // nobody reads the result
)

// errInterrupted is the cause of a context that a signal cancelled.
var errInterrupted = errors.New("interrupted")

// exitStatus is an error that has been told already, or that needs no telling:
// only the code is left.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// kinds maps what went wrong to the code in JSON and the exit code; the first
// that fits wins. Damage comes first: it often shows as something missing.
var kinds = []struct {
	is   error
	code string
	exit int
}{
	{runtime.ErrCorrupt, "corrupt", exitCorrupt},
	{runtime.ErrUsage, "usage", exitUsage},
	{runtime.ErrNotFound, "not_found", exitNotFound},
	{runtime.ErrBusy, "busy", exitBusy},
	{runtime.ErrNotActive, "not_running", exitFailed},
	{runtime.ErrState, "wrong_state", exitFailed},
	{runtime.ErrHost, "host", exitFailed},
}

// explained is an error as the user gets it.
type explained struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	exit    int
}

// explain is the one place where an error becomes text, hint and exit code. ctx
// tells an interruption by the user from other ends of a context.
func explain(ctx context.Context, err error) explained {
	x := explained{Code: "failed", Message: err.Error(), Hint: hintOf(err), exit: exitFailed}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			x.Code, x.exit = k.code, k.exit
			break
		}
	}
	// Whatever a verb made of it, what failed after a signal failed because of it.
	if errors.Is(context.Cause(ctx), errInterrupted) {
		x.Code, x.exit = "interrupted", exitInterrupted
		// That a context was cancelled is no news then.
		x.Message = strings.TrimSuffix(strings.TrimSuffix(x.Message, context.Canceled.Error()), ": ")
		if x.Message = errInterrupted.Error() + ": " + x.Message; strings.HasSuffix(x.Message, ": ") {
			x.Message = errInterrupted.Error()
		}
	}
	return x
}

// hintOf finds the next step that an error carries.
func hintOf(err error) string {
	if u, ok := errors.AsType[*usageError](err); ok {
		return u.hint
	}
	return runtime.Hint(err)
}

// report tells an error and returns the exit code of the process.
func (e *env) report(ctx context.Context, err error) int {
	code := 0
	for _, err := range separate(err) {
		status, told := errors.AsType[exitStatus](err)
		if told {
			code = worse(code, int(status))
			continue
		}
		x := explain(ctx, err)
		code = worse(code, x.exit)
		e.tell(x)
	}
	return code
}

func (e *env) tell(x explained) {
	if e.json {
		// Not through the printer: a failing stderr must not hide the code.
		line, err := json.Marshal(map[string]explained{"error": x})
		if err == nil {
			fmt.Fprintf(e.err, "%s\n", line)
		}
		return
	}
	for text := range strings.SplitSeq(strings.TrimRight(x.Message, "\n"), "\n") {
		fmt.Fprintf(e.err, "sietch: %s\n", text)
	}
	if x.Hint != "" {
		fmt.Fprintf(e.err, "hint: %s\n", strings.ReplaceAll(x.Hint, "\n", "\nhint: "))
	}
}

// several are the errors of one command on several things, each told by itself.
type several []error

func (s several) Error() string   { return errors.Join(s...).Error() }
func (s several) Unwrap() []error { return s }

// eachOf does one thing after the other and goes on after a failure, but not
// after an interruption.
func eachOf(ctx context.Context, all []string, do func(string) error) error {
	var failed several
	for _, one := range all {
		if err := do(one); err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// separate takes apart what eachOf put together.
func separate(err error) []error {
	if err == nil {
		return nil
	}
	if s, ok := errors.AsType[several](err); ok {
		return s
	}
	return []error{err}
}

// worse keeps the first code that is not 0: the user reads the first error first.
func worse(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}
