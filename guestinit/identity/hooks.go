package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// hookLimit is what one hook may take; the sandbox is not handed out meanwhile.
const hookLimit = 10 * time.Second

// runHooks runs the image's own programs for a fresh copy, in the order of their
// names, one at a time, as root. They see the new identity and get it in
// SIETCH_HOSTNAME and SIETCH_MACHINE_ID. What they print goes to the console.
//
// A hook that fails, or takes too long, fails the fork: it is there to replace
// what a copy must not share.
func (a *Applier) runHooks(ctx context.Context, id proto.Identity) error {
	entries, err := os.ReadDir(a.hooksDir) // sorted
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for fork hooks: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(a.hooksDir, e.Name())
		fi, err := os.Stat(path)
		if strings.HasPrefix(e.Name(), ".") || err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			continue
		}
		if err := a.runHook(ctx, path, id); err != nil {
			return fmt.Errorf("fork hook %s: %w", path, err)
		}
	}
	return nil
}

func (a *Applier) runHook(ctx context.Context, path string, id proto.Identity) error {
	if a.o.Start == nil {
		return errNoStart
	}
	cmd := exec.Command(path)
	cmd.Dir = "/"
	cmd.Env = append(append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, a.o.Env...),
		"SIETCH_HOSTNAME="+id.Hostname, "SIETCH_MACHINE_ID="+id.MachineID)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pid, wait, err := a.o.Start(cmd)
	if err != nil {
		return err
	}
	type end struct {
		status unix.WaitStatus
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		st, err := wait()
		ended <- end{st, err}
	}()
	limit := time.NewTimer(hookLimit)
	defer limit.Stop()
	var e end
	select {
	case e = <-ended:
	case <-limit.C:
		err = fmt.Errorf("still running after %s", hookLimit)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		unix.Kill(-pid, unix.SIGKILL)
		<-ended
		return err
	}
	switch {
	case e.err != nil:
		return e.err
	case e.status.Signaled():
		return fmt.Errorf("ended by signal %d", int(e.status.Signal()))
	case e.status.ExitStatus() != 0:
		return fmt.Errorf("exit code %d", e.status.ExitStatus())
	}
	return nil
}
