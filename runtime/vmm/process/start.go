package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Command is a VMM to be started.
type Command struct {
	*exec.Cmd
	RunDir string // see KillIn
	Log    string // where its last words are
	NetNS  string // path of the network namespace it is in; empty means the caller's
	Jail   *Jail  // nil means none
}

// Jail is what every VMM that is not trusted gets: no core, and none of the
// system calls in denied. Its user, its root directory and what else its own
// filter allows are the driver's.
type Jail struct {
	// Cgroups are directories of control groups.
	Cgroups []string
	// Enter is called on the thread that starts the VMM and is nobody else's: it
	// may change what belongs to a thread. Nil means nothing.
	Enter func() error
	// Files are reached by path after Enter, where the kernel has Landlock.
	Files Files
	// Deny are further system calls that this VMM does without.
	Deny []string
}

// Start starts a VMM detached from this process: in a session of its own, with
// nothing inherited but what Cmd says. With an error, nothing of it is left.
func (c Command) Start() (*Process, error) {
	c.Dir, c.Env = "/", Environ(c.RunDir)
	if c.SysProcAttr == nil {
		c.SysProcAttr = new(syscall.SysProcAttr)
	}
	c.SysProcAttr.Setsid = true
	var err error
	switch {
	case c.Jail == nil:
		err = InNetNS(c.NetNS, c.Cmd.Start)
	case c.NetNS == "":
		err = OnOwnThread(func() error { return c.Jail.start(c.Cmd) })
	default:
		err = InNetNS(c.NetNS, func() error { return c.Jail.start(c.Cmd) })
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Path), err)
	}
	p, err := Adopt(c.Cmd, c.Log)
	if err != nil || c.Jail == nil {
		return p, err
	}
	// The VMM starts up meanwhile. Nothing of a guest runs before it is told to.
	if err := p.confine(c.Jail.Cgroups); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// start starts cmd from a thread that is given up for it.
func (j *Jail) start(cmd *exec.Cmd) error {
	if j.Enter != nil {
		if err := j.Enter(); err != nil {
			return err
		}
	}
	// What both ask for who are not root, and a jail in itself.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("deny new privileges: %w", err)
	}
	if err := j.Files.restrict(); err != nil {
		return err
	}
	if err := filterCalls(j.Deny); err != nil {
		return err
	}
	return startWithoutCore(cmd)
}

// starting is held while this process's own limits are those of a child.
var starting sync.Mutex

// startWithoutCore starts a command that leaves no core, which would be the
// guest's memory in a file. For the time of the start, this process leaves none
// either.
func startWithoutCore(cmd *exec.Cmd) (err error) {
	starting.Lock()
	defer starting.Unlock()
	var own unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, nil, &own); err != nil {
		return fmt.Errorf("look at limits: %w", err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{Max: own.Max}, nil); err != nil {
		return fmt.Errorf("limit VMM: %w", err)
	}
	defer func() {
		// Nothing can be said against going back to what was allowed before.
		unix.Prlimit(0, unix.RLIMIT_CORE, &own, nil)
	}()
	return cmd.Start()
}

// confine moves a process just started into control groups, and keeps it from
// allowing itself a core again. One that has ended already is nobody's worry
// here: why it did is for whoever talks to it next.
func (p *Process) confine(cgroups []string) error {
	// Of a process that is another user's already that takes CAP_SYS_RESOURCE,
	// which root lacks in some containers.
	err := unix.Prlimit(p.pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	if err != nil && err != unix.ESRCH && err != unix.EPERM {
		return fmt.Errorf("limit VMM: %w", err)
	}
	var g errgroup.Group
	for _, dir := range cgroups {
		g.Go(func() error { // each waits for all CPUs to notice
			return os.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.AppendInt(nil, int64(p.pid), 10), 0)
		})
	}
	if err := g.Wait(); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("move VMM into its control group: %w", err)
	}
	return nil
}

// Listen makes the socket a VMM is to be talked to on, to be handed to it: it
// listens before the VMM runs, so that connecting needs no polling, and ends at
// once when the VMM does. A stale one of an earlier launch is removed.
func Listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make socket of VMM: %w", err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	return f, errors.Join(err, l.Close())
}
