package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// killTimeout bounds the wait for a killed process. Only one stuck in the
// kernel takes longer.
const killTimeout = 15 * time.Second

// Process is a VMM process, ours or another's child. It is held by a pidfd, so
// a reused pid cannot be met.
type Process struct {
	pid   int
	start uint64
	child bool
	pidfd *os.File
	done  chan struct{}

	mu     sync.Mutex
	killed bool
	err    error // valid after done
}

// children holds the processes started by this one and not reaped yet. They
// are waited for here and nowhere else, however often they are attached to.
var children struct {
	sync.Mutex
	m map[int]*Process
}

// Adopt takes over a started command and waits for its end. log is where
// its last words are; the error of one that has ended already has them. With an
// error, nothing of the command is left.
func Adopt(cmd *exec.Cmd, log string) (*Process, error) {
	p, err := openProcess(cmd.Process.Pid)
	if errors.Is(err, vmm.ErrGone) {
		werr := cmd.Wait()
		if end := endError(cmd.ProcessState, werr, log); end != nil {
			return nil, end
		}
		return nil, WithLastWords(errEnded, log)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait() // killed by us: its end says nothing
		return nil, err
	}
	p.child = true
	children.Lock()
	if children.m == nil {
		children.m = map[int]*Process{}
	}
	children.m[p.pid] = p
	children.Unlock()
	go func() {
		// Waiting for the end on the pidfd, not in wait(2): a wait would also be
		// woken by, and take away, the stops that a debugger in this program
		// (package guestmem is one, for a moment) is waiting for.
		p.await()
		err := cmd.Wait()
		children.Lock()
		delete(children.m, p.pid)
		children.Unlock()
		p.ended(endError(cmd.ProcessState, err, log))
	}()
	return p, nil
}

// Find adopts the process of a handle.
func Find(h vmm.Handle, log string) (*Process, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if boot != h.BootID {
		return nil, fmt.Errorf("%w: the host was started anew since", vmm.ErrGone)
	}
	children.Lock()
	p := children.m[h.PID]
	children.Unlock()
	if p != nil && p.start == h.StartTime {
		return p, nil
	}
	p, err = openProcess(h.PID)
	if err != nil {
		return nil, err
	}
	if p.start != h.StartTime {
		return nil, errors.Join(vmm.ErrGone, p.pidfd.Close())
	}
	p.watch(log)
	return p, nil
}

// Attach is Find for the machine of a driver, with its shape. log is the name of
// the file in the run directory that has its last words.
func Attach(h vmm.Handle, driver, log string) (*Process, vmm.Shape, error) {
	if h.Driver != driver {
		return nil, vmm.Shape{}, fmt.Errorf("attach to machine: its driver is %q, not %q", h.Driver, driver)
	}
	p, err := Find(h, filepath.Join(h.RunDir, log))
	if err != nil {
		return nil, vmm.Shape{}, fmt.Errorf("attach to machine of process %d: %w", h.PID, err)
	}
	shape, err := vmm.ReadShape(h.RunDir)
	if err != nil {
		return nil, vmm.Shape{}, errors.Join(fmt.Errorf("attach to machine of process %d: %w", h.PID, err), p.Release())
	}
	return p, shape, nil
}

// watch waits for the end of another's child.
func (p *Process) watch(log string) {
	go func() {
		if p.await() {
			p.ended(p.foreignEnd(log))
		}
	}()
}

// openProcess takes hold of a living process.
func openProcess(pid int) (*Process, error) {
	// Non-blocking, so that waiting is done by Go's poller and not by a thread.
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH || err == unix.EINVAL {
		return nil, vmm.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	start, err := StartTime(pid)
	if err != nil {
		return nil, errors.Join(err, pidfd.Close())
	}
	return &Process{pid: pid, start: start, pidfd: pidfd, done: make(chan struct{})}, nil
}

// await blocks until the process has ended (true) or the hold on it was
// released (false).
func (p *Process) await() bool {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err != nil && err != unix.EINTR || n > 0
	}) == nil
}

// release gives up the hold on another's child. One's own is waited for anyway.
func (p *Process) Release() error {
	if p.child {
		return nil
	}
	if err := p.pidfd.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// During runs f, which talks to the VMM, with a context that ends with the
// process too. When that is why f failed, its error wraps vmm.ErrGone.
func (p *Process) During(ctx context.Context, f func(context.Context) error) error {
	select {
	case <-p.done:
		return vmm.ErrGone
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with ctx at the latest
		select {
		case <-p.done:
			cancel(vmm.ErrGone)
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	if err != nil && p.Ending() {
		return errors.Join(vmm.ErrGone, err)
	}
	return err
}

// endingTime is how long after its connections the end of a process may be
// noticed.
const endingTime = time.Second

// EndsSoon waits, a second at most, for the end of a process that is ending.
func (p *Process) EndsSoon(ctx context.Context) bool {
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-time.After(endingTime):
	}
	return false
}

// AwaitEnd waits for the end of a process that was asked to end, and kills it
// when ctx ends first: that is an error then.
func (p *Process) AwaitEnd(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.Kill())
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Handle describes the process for a later Find; the caller fills in the rest.
func (p *Process) Handle() (vmm.Handle, error) {
	boot, err := BootID()
	return vmm.Handle{PID: p.pid, StartTime: p.start, BootID: boot}, err
}

// Done is closed after the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says why it ended; valid after Done, nil for exit status 0.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Ending reports whether the process has ended or is about to: its sockets
// break a moment before it can be waited for.
func (p *Process) Ending() bool {
	select {
	case <-p.done:
		return true
	default:
	}
	_, err := StartTime(p.pid)
	return err != nil
}

func (p *Process) ended(err error) {
	p.mu.Lock()
	if p.killed {
		err = errKilled
	}
	p.err = err
	p.mu.Unlock()
	close(p.done)
	p.pidfd.Close()
}

// pidfdGetInfo is the PIDFD_GET_INFO ioctl and pidfdInfo the first version of
// its struct (linux/pidfd.h).
const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3     // the exit status, Linux 6.15
)

type pidfdInfo struct {
	mask, cgroup uint64
	ids          [11]uint32
	exitCode     int32 // as wait(2) gives it
}

// foreignEnd says why another's child ended. Its exit status went to its
// parent; newer kernels tell holders of a pidfd too, once it was reaped.
func (p *Process) foreignEnd(log string) error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return errEnded
	}
	var info pidfdInfo
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		info = pidfdInfo{mask: pidfdInfoExit}
		var errno unix.Errno
		raw.Control(func(fd uintptr) {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		})
		if info.mask&pidfdInfoExit != 0 || errno == unix.ENOTTY || errno == unix.EINVAL {
			break
		}
	}
	if info.mask&pidfdInfoExit == 0 {
		return WithLastWords(errEnded, log)
	}
	status := unix.WaitStatus(info.exitCode)
	switch {
	case status == 0:
		return nil
	case status.Signaled():
		return WithLastWords(fmt.Errorf("VMM ended: signal: %v", status.Signal()), log)
	}
	return WithLastWords(fmt.Errorf("VMM ended: exit status %d", status.ExitStatus()), log)
}

// errEnded is the end of a process whose exit status only its parent knows.
var errEnded = errors.New("VMM ended")

var errKilled = errors.New("killed")

// endError turns an exit status into Machine.Err.
func endError(state *os.ProcessState, err error, log string) error {
	if state != nil && state.Success() {
		return nil
	}
	if state != nil {
		err = errors.New(state.String())
	}
	return WithLastWords(fmt.Errorf("VMM ended: %w", err), log)
}

// runDirVariable is in the environment of every VMM. Others may have a path in a
// run directory on their command line, such as somebody who reads a log there.
const runDirVariable = "SIETCH_RUN_DIR"

// Environ is the whole environment a VMM is started with.
func Environ(runDir string) []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", runDirVariable + "=" + runDir}
}

// KillIn ends every VMM that was started with this run directory, also one whose
// launcher was killed before it could note which process it is.
func KillIn(runDir string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Held before it is looked at, so that it cannot be another one afterwards.
		q, err := openProcess(pid)
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + p.Name() + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), runDirVariable+"="+runDir) {
			q.Release() // somebody else's, or gone
			continue
		}
		q.watch("")
		if err := q.Kill(); err != nil {
			return fmt.Errorf("end left-over VMM: %w", errors.Join(err, q.Release()))
		}
	}
	return nil
}

// WithLastWords adds the end of the VMM's own output to an error.
func WithLastWords(err error, log string) error {
	data, rerr := os.ReadFile(log)
	data = bytes.TrimSpace(data)
	if rerr != nil || len(data) == 0 {
		return err
	}
	const most = 2 << 10
	if len(data) > most {
		data = data[len(data)-most:]
		if _, rest, ok := bytes.Cut(data, []byte("\n")); ok {
			data = rest
		}
	}
	return fmt.Errorf("%w: %s", err, data)
}

// kill ends the process and waits until it is gone. Idempotent.
func (p *Process) Kill() error {
	p.mu.Lock()
	select {
	case <-p.done:
	default:
		p.killed = true
	}
	p.mu.Unlock()
	if err := p.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("kill process %d: still there after %s", p.pid, killTimeout)
	}
}

func (p *Process) signal(sig unix.Signal) error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil // closed: it has ended
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return nil
	}
	if serr == unix.ESRCH {
		return nil
	}
	return serr
}

// StartTime is field 22 of /proc/PID/stat: what tells a process from a later one
// of the same pid. A zombie counts as gone.
func StartTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, vmm.ErrGone
	}
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything.
	i := bytes.LastIndexByte(data, ')')
	f := strings.Fields(string(data[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("unknown form of /proc/%d/stat", pid)
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, vmm.ErrGone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// BootID changes with every start of the host.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
