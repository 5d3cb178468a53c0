package guestmem

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ptraceEventStop is PTRACE_EVENT_STOP of linux/ptrace.h.
const ptraceEventStop = 128

// tracee is a thread of the VMM under ptrace(2). All its methods are called from
// one locked OS thread; when that thread ends, even by a kill of this process,
// the kernel lets the tracee run on.
//
// No other thread of this program may be blocked in a wait(2) for the VMM
// meanwhile: it would be given the stop in place of the tracer. Who is the
// parent waits on a pidfd (package vmm/process).
type tracee struct{ tid int }

// stop is why a traced thread stands still.
type stop struct{ signal, event int }

func (s stop) interrupted() bool { return s.event == ptraceEventStop && s.signal == int(unix.SIGTRAP) }
func (s stop) trapped() bool     { return s.event == 0 && s.signal == int(unix.SIGTRAP) }

// deliver is the signal to hand on when the thread is let go.
func (s stop) deliver() int {
	if s.event != 0 || s.trapped() {
		return 0
	}
	return s.signal
}

// waitStop waits for the thread to stop. It polls: a blocking wait cannot be
// bounded, and waiting for the end of the process too would take its exit
// status away from whoever started it.
func (t tracee) waitStop(ctx context.Context) (stop, error) {
	for spin := 0; ; spin++ {
		var info [128]byte // siginfo_t
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(t.tid), uintptr(unsafe.Pointer(&info)),
			unix.WSTOPPED|unix.WNOHANG|unix.WALL, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.ECHILD:
			return stop{}, ErrGone
		case errno != 0:
			return stop{}, fmt.Errorf("wait for thread: %w", errno)
		}
		if signo := *(*int32)(unsafe.Pointer(&info[0])); signo != 0 {
			status := int(*(*int32)(unsafe.Pointer(&info[24])))
			return stop{signal: status & 0xff, event: status >> 8}, nil
		}
		if err := ctx.Err(); err != nil {
			return stop{}, fmt.Errorf("wait for thread: %w", err)
		}
		if spin > 100 {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func (t tracee) ptrace(request int, addr, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.tid), addr, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
