package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// process is a running child with its descriptors. It does not know whether a
// client is there: output goes to emit, which may do nothing.
type process struct {
	pid     int
	wait    func() (unix.WaitStatus, error)
	timeout time.Duration

	in      *stdin // nil: /dev/null
	tty     *os.File
	outputs []*output
	emit    func(t proto.FrameType, buf []byte) // buf has room for a frame header in front
	keep    bool                                // descendants' output too, after its end

	mu     sync.Mutex
	reaped bool

	exited chan struct{} // closed once the child is reaped
	ended  chan struct{} // closed once its output is delivered and result is set
	result proto.ExitStatus
	err    error // why the end is not known
}

// output is one of the child's output descriptors, our end of it.
type output struct {
	file *os.File
	kind proto.FrameType
	many bool // there may be many such that are silent
}

// descriptors opens what cmd reads and writes. The child's ends are in cmd and
// in the returned list, to be closed once it runs.
func (p *process) descriptors(cmd *exec.Cmd, r proto.ExecRequest, who account, grant func(int)) (theirs []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(theirs)
			p.release()
			theirs = nil
		}
	}()
	if r.TTY {
		master, slave, err := openTerminal(r.Rows, r.Cols)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, slave)
		p.tty = master
		p.outputs = []*output{{file: master, kind: proto.FrameStdout}}
		p.in = newStdin(master, true, grant)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setctty = true // descriptor 0 of the child
		return theirs, own(theirs, who)
	}
	if r.Stdin {
		child, ours, err := pipe(0)
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, child)
		p.in = newStdin(ours, false, grant)
		cmd.Stdin = child
	}
	for _, kind := range []proto.FrameType{proto.FrameStdout, proto.FrameStderr} {
		child, ours, err := pipe(1)
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, child)
		p.outputs = append(p.outputs, &output{file: ours, kind: kind})
		if kind == proto.FrameStdout {
			cmd.Stdout = child
		} else {
			cmd.Stderr = child
		}
	}
	return theirs, own(theirs, who)
}

// merged gives cmd an empty stdin and one pipe for all it writes.
func (p *process) merged(cmd *exec.Cmd, who account) (theirs []*os.File, err error) {
	child, ours, err := pipe(1)
	if err != nil {
		return nil, err
	}
	theirs = []*os.File{child}
	p.outputs = []*output{{file: ours, kind: proto.FrameStdout, many: true}}
	cmd.Stdout, cmd.Stderr = child, child
	if err := own(theirs, who); err != nil {
		closeAll(theirs)
		p.release()
		return nil, err
	}
	return theirs, nil
}

// pipe makes a pipe of which the child has one end, 0 to read or 1 to write.
// os.Pipe makes both ends non-blocking and registers both for polling, only to
// undo it for the child: eight system calls more for each.
func pipe(childs int) (child, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	if err := unix.SetNonblock(fds[1-childs], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[childs]), "pipe"), os.NewFile(uintptr(fds[1-childs]), "pipe"), nil
}

// own gives the child's descriptors to its user, who may want to open
// /dev/stdout or /dev/tty again.
func own(files []*os.File, who account) error {
	if who.uid == 0 {
		return nil
	}
	for _, f := range files {
		if err := f.Chown(int(who.uid), -1); err != nil && os.Geteuid() == 0 {
			return err
		}
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// release closes the descriptors of a process that never ran.
func (p *process) release() {
	if p.in != nil {
		p.in.close()
	}
	for _, o := range p.outputs {
		o.file.Close()
	}
}

// run delivers output until the child has ended, and its result. It is the
// only place that waits for the child.
func (p *process) run() {
	var delivered, fed sync.WaitGroup
	if p.in != nil {
		fed.Go(p.in.pump)
	}
	delivered.Add(len(p.outputs))
	for _, o := range p.outputs {
		go func() {
			ended := o.copy(p.emit)
			delivered.Done()
			switch {
			case ended:
			case p.keep:
				o.copy(p.emit)
			default:
				o.discard()
			}
			o.file.Close()
		}()
	}
	expired := make(chan bool, 1) // whether the time limit ended it
	var timer *time.Timer
	if p.timeout > 0 {
		timer = time.AfterFunc(p.timeout, func() { expired <- p.kill(unix.SIGTERM) })
	}

	ws, err := p.wait()
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	close(p.exited)
	timedOut := timer != nil && !timer.Stop() && <-expired
	if p.in != nil {
		p.in.close()
		fed.Wait() // it grants windows, and nothing may follow the exit
	}
	for _, o := range p.outputs {
		o.file.SetReadDeadline(time.Now().Add(drainGrace))
	}
	delivered.Wait()

	p.err = err
	p.result = exitStatus(ws)
	if timedOut {
		p.result = proto.ExitStatus{Code: exitTimeout, Signal: p.result.Signal, Error: "timed out after " + p.timeout.String()}
	}
	close(p.ended)
}

// signal sends sig to the child's process group, as a terminal would, unless
// the child has ended.
func (p *process) signal(sig unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		unix.Kill(-p.pid, sig)
	}
}

// kill asks the child's whole session to end with sig and, when the child has
// ended or killGrace is over, kills what is left. Nothing happens, and it
// returns false, when the child had ended before: what it left was meant to stay.
func (p *process) kill(sig unix.Signal) bool {
	p.mu.Lock()
	if p.reaped {
		p.mu.Unlock()
		return false
	}
	signalSession(p.pid, sig)
	signalSession(p.pid, unix.SIGCONT) // a stopped process does not see it otherwise
	p.mu.Unlock()
	grace := time.NewTimer(killGrace)
	defer grace.Stop()
	select {
	case <-p.exited:
		// The number may be in use again, but then nobody of this session is left.
		if _, err := os.Stat("/proc/" + strconv.Itoa(p.pid)); err == nil {
			return true
		}
	case <-grace.C:
	}
	killSession(p.pid)
	return true
}
