package guestmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTimeout bounds the wait for threads to stand still.
const freezeTimeout = 5 * time.Second

// whileFrozen runs f while no thread of process pid runs. ptrace is used rather
// than SIGSTOP because it lets go by itself when this process dies.
func whileFrozen(ctx context.Context, pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // and never unlocked, see injectUserfaultfd
		done <- frozen(ctx, pid, f)
	}()
	return <-done
}

func frozen(ctx context.Context, pid int, f func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	held := map[int]stop{}
	defer func() {
		for tid, s := range held {
			t := tracee{tid}
			if derr := t.ptrace(unix.PTRACE_DETACH, 0, uintptr(s.deliver())); derr != nil && derr != unix.ESRCH {
				err = errors.Join(err, fmt.Errorf("let go of thread %d: %w", tid, derr))
			}
		}
	}()
	// A thread may be started while others are being stopped, so look again
	// until there is none that runs.
	for {
		running, err := threadsExcept(pid, held)
		if err != nil {
			return err
		}
		if len(running) == 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stop threads: %w", err)
		}
		for _, tid := range running {
			t := tracee{tid}
			if err := t.hold(ctx, held); err != nil {
				return fmt.Errorf("stop thread %d: %w", tid, err)
			}
		}
	}
	return f()
}

// hold stops one thread and notes it in held. A thread that has ended is none.
func (t tracee) hold(ctx context.Context, held map[int]stop) error {
	for _, request := range []int{unix.PTRACE_SEIZE, unix.PTRACE_INTERRUPT} {
		if err := t.ptrace(request, 0, 0); err == unix.ESRCH {
			return nil
		} else if err != nil {
			return err
		}
	}
	s, err := t.waitStop(ctx)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil {
		held[t.tid] = s
	}
	return err
}

func threadsExcept(pid int, held map[int]stop) ([]int, error) {
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
	if err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return nil, ErrGone
	}
	var running []int
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return nil, err
		}
		if _, ok := held[tid]; ok {
			continue
		}
		if _, err := os.Stat(task); err == nil {
			running = append(running, tid)
		}
	}
	return running, nil
}
