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

// A userfaultfd watches the address space of the process that makes it, and
// only the process itself can drop its pages, so the VMM has to do both. It is
// not asked: ptrace(2) stops its main thread for some tens of microseconds,
// borrows it for a few system calls, and puts every register back. A system call
// that the stop interrupted is restarted by the kernel exactly as after a stop
// by a debugger.
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

// remoteCall is one system call of another process, with up to three arguments.
type remoteCall struct {
	number uint64
	args   [3]uint64
}

// callsPerStop bounds how long the thread is kept from its own work.
const callsPerStop = 32

// injectUserfaultfd makes process pid create a userfaultfd and returns its
// number there.
func injectUserfaultfd(ctx context.Context, pid int) (int, error) {
	fd := -1
	err := inject(ctx, pid, []remoteCall{{unix.SYS_USERFAULTFD, [3]uint64{unix.O_CLOEXEC | uffdUserModeOnly}}}, func(result uint64) error {
		if n := int64(result); n < 0 {
			return fmt.Errorf("userfaultfd: %w", unix.Errno(-n))
		}
		fd = int(result)
		return nil
	})
	return fd, err
}

// injectDontNeed makes process pid drop its own pages of address ranges. What is
// told to done has been dropped, whatever the error.
func injectDontNeed(ctx context.Context, pid int, ranges []addressRange, done func(addressRange)) error {
	calls := make([]remoteCall, len(ranges))
	for i, r := range ranges {
		calls[i] = remoteCall{unix.SYS_MADVISE, [3]uint64{r.start, r.bytes, unix.MADV_DONTNEED}}
	}
	i := 0
	return inject(ctx, pid, calls, func(result uint64) error {
		if n := int64(result); n < 0 {
			return fmt.Errorf("madvise: %w", unix.Errno(-n))
		}
		done(ranges[i])
		i++
		return nil
	})
}

// inject makes process pid do system calls, in order, and hands their results
// to each until that returns an error. A call may be made twice when a signal
// comes in between.
func inject(ctx context.Context, pid int, calls []remoteCall, each func(result uint64) error) error {
	done := make(chan error, 1)
	go func() {
		// ptrace is bound to the calling thread. It is not unlocked: when the
		// goroutine ends so does the thread, and the kernel lets go of whatever
		// it may still trace.
		goruntime.LockOSThread()
		for len(calls) > 0 {
			n := min(len(calls), callsPerStop)
			if err := injectSome(ctx, pid, calls[:n], each); err != nil {
				done <- err
				return
			}
			calls = calls[n:]
		}
		done <- nil
	}()
	return <-done
}

// injectSome does a few calls in as few stops of the thread as can be.
func injectSome(ctx context.Context, pid int, calls []remoteCall, each func(result uint64) error) error {
	ctx, cancel := context.WithTimeout(ctx, injectTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		t, err := seize(pid)
		if err != nil {
			return err
		}
		results, err := t.borrow(ctx, calls, attempt == injectAttempts)
		for _, r := range results {
			if err := each(r); err != nil {
				return err
			}
		}
		if err == nil {
			return nil
		}
		calls = calls[len(results):]
		if !errors.Is(err, errRetry) || attempt == injectAttempts {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(time.Millisecond):
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

// borrow stops the thread, has it make the calls, and lets it go. With
// anywhere, a thread found outside a system call is borrowed too. The results
// are those of the first calls, as far as it came.
func (t tracee) borrow(ctx context.Context, calls []remoteCall, anywhere bool) (results []uint64, err error) {
	if err := t.ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return nil, fmt.Errorf("stop thread: %w", goneIfMissing(err))
	}
	pass, err := t.waitStop(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		// A signal that was about to be delivered when we stopped the thread is
		// handed on.
		if derr := t.ptrace(unix.PTRACE_DETACH, 0, uintptr(pass.deliver())); derr != nil {
			err = errors.Join(err, fmt.Errorf("let go of thread: %w", derr))
		}
	}()
	if !pass.interrupted() {
		return nil, fmt.Errorf("%w: stopped by signal %d", errRetry, pass.signal)
	}

	var saved unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &saved); err != nil {
		return nil, fmt.Errorf("read registers: %w", err)
	}
	at, err := t.syscallInstruction(&saved, anywhere)
	if err != nil {
		return nil, err
	}
	defer func() {
		if rerr := unix.PtraceSetRegs(t.tid, &saved); rerr != nil {
			err = errors.Join(err, fmt.Errorf("restore registers: %w", rerr))
		}
	}()
	// From here on ctx does not count: the registers have to be put back.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	for _, c := range calls {
		regs := saved
		regs.Rip = at
		regs.Rax = c.number
		regs.Orig_rax = ^uint64(0) // no system call is under way that could be restarted
		regs.Rdi, regs.Rsi, regs.Rdx = c.args[0], c.args[1], c.args[2]
		if err := unix.PtraceSetRegs(t.tid, &regs); err != nil {
			return results, fmt.Errorf("write registers: %w", err)
		}
		after, result, err := t.step(ctx)
		if err != nil {
			return results, err
		}
		if !after.trapped() {
			pass = after
			return results, fmt.Errorf("%w: signal %d came in between", errRetry, after.signal)
		}
		results = append(results, result)
	}
	return results, nil
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
