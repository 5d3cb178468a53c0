package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

func adopt(t *testing.T, script string) (*Process, string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Adopt(cmd, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p, log
}

func wait(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("end was not noticed")
	}
}

func TestEnds(t *testing.T) {
	for _, c := range []struct{ what, script, says string }{
		{"clean", "exec sleep 0.1", ""},
		{"status", "sleep 0.1; echo the disk is missing; exit 3", "exit status 3: the disk is missing"},
		{"signal", "sleep 0.1; kill -SEGV $$", "segmentation fault"},
	} {
		p, _ := adopt(t, c.script)
		wait(t, p)
		switch err := p.Err(); {
		case c.says == "" && err != nil:
			t.Errorf("%s: got %v", c.what, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: got %v, want %q", c.what, err, c.says)
		}
		if !p.Ending() {
			t.Errorf("%s: not ending after its end", c.what)
		}
		if err := errors.Join(p.Kill(), p.Kill(), p.Release(), p.Release()); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestFindForeign looks at a grandchild: a process that another one waits for.
func TestFindForeign(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	parent, log := adopt(t, "sh -c 'exec sleep 60' & echo $! > "+pidFile+"; wait $!; sleep 60")
	var pid int
	for deadline := time.Now().Add(10 * time.Second); pid == 0; time.Sleep(time.Millisecond) {
		data, _ := os.ReadFile(pidFile)
		if strings.HasSuffix(string(data), "\n") {
			pid = number(t, strings.TrimSpace(string(data)))
		}
		if time.Now().After(deadline) {
			t.Fatal("no grandchild")
		}
	}
	start, err := StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	h := vmm.Handle{PID: pid, StartTime: start, BootID: boot}
	a, err := Find(h, log)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Find(h, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Release(), a.Release()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Done():
		t.Error("a released process is done")
	case <-b.Done():
		t.Error("ended by a release")
	case <-time.After(20 * time.Millisecond):
	}
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	if b.Err() == nil {
		t.Error("a killed process ended cleanly")
	}
	if _, err := Find(h, log); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("find again: got %v, want ErrGone", err)
	}
	if parent.Ending() {
		t.Error("the parent was ended too")
	}
	// One's own children are one process however often they are found.
	ph, err := parent.Handle()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Find(ph, log); err != nil || again != parent {
		t.Errorf("find a child: got %v, %v", again, err)
	}
}

// TestTracedChild: a stop under ptrace belongs to the tracer, and is no end.
func TestTracedChild(t *testing.T) {
	p, _ := adopt(t, "while :; do sleep 0.01; done")
	result := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // and never unlocked: lets go of the tracee in any case
		result <- func() error {
			for n := range 100 {
				if err := unix.PtraceSeize(p.PID()); err != nil {
					return fmt.Errorf("seize: %w", err)
				}
				if err := unix.PtraceInterrupt(p.PID()); err != nil {
					return fmt.Errorf("interrupt: %w", err)
				}
				for deadline := time.Now().Add(5 * time.Second); ; {
					var status unix.WaitStatus
					pid, err := unix.Wait4(p.PID(), &status, unix.WALL|unix.WNOHANG, nil)
					if err != nil {
						return fmt.Errorf("wait: %w", err)
					}
					if pid != 0 {
						break
					}
					if time.Now().After(deadline) {
						return fmt.Errorf("stop %d was taken by somebody else", n)
					}
				}
				if err := unix.PtraceDetach(p.PID()); err != nil {
					return fmt.Errorf("detach: %w", err)
				}
			}
			return nil
		}()
	}()
	if err := <-result; err != nil {
		t.Error(err)
	}
	select {
	case <-p.Done():
		t.Errorf("a stop counts as the end: %v", p.Err())
	default:
	}
}

// TestOnOwnThread: what f changes of its thread is seen by nobody else, wherever
// it is called from.
func TestOnOwnThread(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	const calls = 64
	results := make(chan error, calls)
	for range calls {
		go func() {
			results <- OnOwnThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					return errors.New("on the main thread")
				}
				if os.Geteuid() != 0 {
					return nil
				}
				if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
					return err
				}
				// Also for what is called from there.
				return OnOwnThread(func() error { return unix.Unshare(unix.CLONE_FS) })
			})
		}()
	}
	for range calls {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	want := errors.New("of f")
	if err := OnOwnThread(func() error { return want }); err != want {
		t.Errorf("got %v, want the error of f", err)
	}
	for range 100 {
		// On whatever thread this goroutine is now.
		time.Sleep(time.Millisecond)
		if after, err := os.Readlink("/proc/thread-self/ns/uts"); err != nil || after != before {
			t.Fatalf("namespace is %s (%v), was %s", after, err, before)
		}
	}
}

func TestStartWithoutCore(t *testing.T) {
	limit := func(pid int) unix.Rlimit {
		t.Helper()
		var l unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	before := limit(0)
	want := unix.Rlimit{Cur: before.Max, Max: before.Max}
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &want, nil); err != nil {
		t.Fatal(err)
	}
	defer unix.Prlimit(0, unix.RLIMIT_CORE, &before, nil)
	for range 4 {
		cmd := exec.Command("/bin/sleep", "60")
		if err := startWithoutCore(cmd); err != nil {
			t.Fatal(err)
		}
		if l := limit(cmd.Process.Pid); l.Cur != 0 {
			t.Errorf("may leave a core of %d bytes", l.Cur)
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
	if err := startWithoutCore(exec.Command("/nonexistent")); err == nil {
		t.Error("started what is not there")
	}
	if got := limit(0); got != want {
		t.Errorf("own limit is %+v afterwards, was %+v", got, want)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A command that has ended before it is taken over says why, too.
func TestAdoptTheDead(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sh", "-c", "echo the sky is falling; exit 3")
	cmd.Stdout = f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for { // until it is a zombie
		if _, err := StartTime(cmd.Process.Pid); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	p, err := Adopt(cmd, log)
	if err == nil {
		p.Kill()
		t.Fatal("no error")
	}
	if !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the sky is falling") {
		t.Errorf("got %v", err)
	}
}
