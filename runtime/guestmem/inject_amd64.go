package guestmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A userfaultfd watches the address space of the process that makes it, so the
// VMM has to make it itself. It is not asked: ptrace(2) stops its main thread
// for some tens of microseconds, borrows it for that one system call, and puts
// every register back. A system call that the stop interrupted is restarted by
// the kernel exactly as after a stop by a debugger.
//
// Should this process be killed in that short time, the thread goes on with
// the registers of the borrowed call. That is why the call is made, whenever
// possible, at the very instruction the thread was waiting in: what it sees
// then is a wait that ended early.

const (
	injectAttempts = 50
	injectTimeout  = 2 * time.Second // a thread in uninterruptible sleep is not worth more
	stepTimeout    = time.Minute     // one short system call on a host that may be overloaded

	ptraceOSuspendSeccomp = 1 << 21
)

// errRetry: the thread was not where it can be borrowed; nothing was changed.
var errRetry = errors.New("thread is busy")

// injectUserfaultfd makes process pid create a userfaultfd and returns its
// number there.
func injectUserfaultfd(ctx context.Context, pid int) (int, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result, 1)
	go func() {
		// ptrace is bound to the calling thread. It is not unlocked: when the
		// goroutine ends so does the thread, and the kernel lets go of whatever
		// it may still trace.
		goruntime.LockOSThread()
		fd, err := inject(ctx, pid)
		done <- result{fd, err}
	}()
	r := <-done
	return r.fd, r.err
}

func inject(ctx context.Context, pid int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, injectTimeout)
	defer cancel()
	t, err := seize(pid)
	if err != nil {
		return 0, err
	}
	for attempt := 1; ; attempt++ {
		fd, err := t.borrow(ctx, attempt == injectAttempts)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, errRetry) || attempt == injectAttempts {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, errors.Join(err, ctx.Err())
		case <-time.After(time.Millisecond):
		}
		if t, err = seize(pid); err != nil {
			return 0, err
		}
	}
}

// seize takes hold of the main thread without stopping it. Seccomp filters of
// the thread are suspended meanwhile: an allow list such as cloud-hypervisor's
// kills the process for an unknown call. Where they cannot be suspended, a
// filtered thread is left alone.
func seize(pid int) (tracee, error) {
	t := tracee{pid}
	err := t.ptrace(unix.PTRACE_SEIZE, 0, ptraceOSuspendSeccomp)
	if err == nil {
		return t, nil
	}
	filtered, ferr := hasSeccomp(pid)
	if ferr != nil {
		return t, ferr
	}
	if filtered {
		return t, fmt.Errorf("suspend seccomp filter: %w", err)
	}
	if err := t.ptrace(unix.PTRACE_SEIZE, 0, 0); err != nil {
		return t, fmt.Errorf("trace process: %w", goneIfMissing(err))
	}
	return t, nil
}

func hasSeccomp(pid int) (bool, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false, goneIfMissing(err)
	}
	for line := range strings.Lines(string(status)) {
		if mode, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(mode) != "0", nil
		}
	}
	return false, nil // a kernel without seccomp
}

// borrow stops the thread, has it make the call, and lets it go. With
// anywhere, a thread found outside a system call is borrowed too.
func (t tracee) borrow(ctx context.Context, anywhere bool) (fd int, err error) {
	if err := t.ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return 0, fmt.Errorf("stop thread: %w", goneIfMissing(err))
	}
	pass, err := t.waitStop(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		// A signal that was about to be delivered when we stopped the thread is
		// handed on.
		if derr := t.ptrace(unix.PTRACE_DETACH, 0, uintptr(pass.deliver())); derr != nil {
			err = errors.Join(err, fmt.Errorf("let go of thread: %w", derr))
		}
	}()
	if !pass.interrupted() {
		return 0, fmt.Errorf("%w: stopped by signal %d", errRetry, pass.signal)
	}

	var saved unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &saved); err != nil {
		return 0, fmt.Errorf("read registers: %w", err)
	}
	at, err := t.syscallInstruction(&saved, anywhere)
	if err != nil {
		return 0, err
	}
	call := saved
	call.Rip = at
	call.Rax = unix.SYS_USERFAULTFD
	call.Orig_rax = ^uint64(0) // no system call is under way that could be restarted
	call.Rdi = unix.O_CLOEXEC | uffdUserModeOnly
	if err := unix.PtraceSetRegs(t.tid, &call); err != nil {
		return 0, fmt.Errorf("write registers: %w", err)
	}
	// From here on ctx does not count: the registers have to be put back.
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	after, result, err := t.step(sctx)
	if rerr := unix.PtraceSetRegs(t.tid, &saved); rerr != nil {
		return 0, errors.Join(err, fmt.Errorf("restore registers: %w", rerr))
	}
	if err != nil {
		return 0, err
	}
	if !after.trapped() {
		pass = after
		return 0, fmt.Errorf("%w: signal %d came in between", errRetry, after.signal)
	}
	if n := int64(result); n < 0 {
		return 0, fmt.Errorf("userfaultfd: %w", unix.Errno(-n))
	}
	return int(result), nil
}

// step runs one instruction and returns the stop after it and the value of rax.
func (t tracee) step(ctx context.Context) (stop, uint64, error) {
	if err := t.ptrace(unix.PTRACE_SINGLESTEP, 0, 0); err != nil {
		return stop{}, 0, fmt.Errorf("step thread: %w", err)
	}
	s, err := t.waitStop(ctx)
	if err != nil {
		return s, 0, err
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &regs); err != nil {
		return s, 0, fmt.Errorf("read registers: %w", err)
	}
	return s, regs.Rax, nil
}

// syscallInstruction finds a syscall instruction to borrow: the one the thread
// waits in, else one of the vDSO.
func (t tracee) syscallInstruction(regs *unix.PtraceRegs, anywhere bool) (uint64, error) {
	insn := []byte{0x0f, 0x05}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", t.tid))
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	if int64(regs.Orig_rax) >= 0 {
		b := make([]byte, len(insn))
		if _, err := mem.ReadAt(b, int64(regs.Rip)-int64(len(insn))); err == nil && bytes.Equal(b, insn) {
			return regs.Rip - uint64(len(insn)), nil
		}
	}
	if !anywhere {
		return 0, errRetry
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", t.tid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil || m.path != "[vdso]" {
			continue
		}
		code := make([]byte, m.end-m.start)
		if _, err := mem.ReadAt(code, int64(m.start)); err != nil {
			return 0, fmt.Errorf("read vDSO: %w", err)
		}
		if i := bytes.Index(code, insn); i >= 0 {
			return m.start + uint64(i), nil
		}
	}
	return 0, errors.New("no syscall instruction found")
}
