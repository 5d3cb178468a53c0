package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/sietch-dev/sietch/runtime"
)

// terminal is this side of an exec with a terminal of its own.
type terminal struct {
	size    runtime.TTYSize
	resized chan runtime.TTYSize

	restore func()
	winch   chan os.Signal
	done    chan struct{}
}

// attachTerminal follows the size of the terminal that sietch runs in and, when
// the user types into it, stops it from editing lines and making signals: that
// is the guest terminal's work. Without a terminal the size is 0.
func (e *env) attachTerminal(input bool) (*terminal, error) {
	t := &terminal{
		resized: make(chan runtime.TTYSize, 1),
		restore: func() {},
		winch:   make(chan os.Signal, 1),
		done:    make(chan struct{}),
	}
	if fd, ok := descriptor(e.in); ok && input {
		state, err := term.MakeRaw(fd)
		if err != nil {
			return nil, fmt.Errorf("set terminal to raw mode: %w", err)
		}
		t.restore = e.leave(func() { _ = term.Restore(fd, state) })
	}
	t.size = e.terminalSize()
	signal.Notify(t.winch, syscall.SIGWINCH)
	go func() {
		defer close(t.done)
		for range t.winch {
			size := e.terminalSize()
			// Only the newest size is of interest to a guest that reads slowly.
			select {
			case <-t.resized:
			default:
			}
			t.resized <- size
		}
	}()
	return t, nil
}

// detach puts the terminal back.
func (t *terminal) detach() {
	t.restore()
	signal.Stop(t.winch)
	close(t.winch)
	<-t.done
}

// terminalSize is that of stdout, or of stdin where stdout is no terminal.
func (e *env) terminalSize() runtime.TTYSize {
	for _, stream := range []any{e.out, e.in} {
		if fd, ok := descriptor(stream); ok && term.IsTerminal(fd) {
			if cols, rows, err := term.GetSize(fd); err == nil {
				return runtime.TTYSize{Rows: clampSize(rows), Cols: clampSize(cols)}
			}
		}
	}
	return runtime.TTYSize{}
}

func clampSize(n int) uint16 { return uint16(max(0, min(n, 1<<16-1))) }

// isTerminal says whether a stream is a terminal.
func (e *env) isTerminal(stream any) bool {
	fd, ok := descriptor(stream)
	return ok && term.IsTerminal(fd)
}

func descriptor(stream any) (int, bool) {
	f, ok := stream.(interface{ Fd() uintptr })
	if !ok {
		return 0, false
	}
	return int(f.Fd()), true
}
