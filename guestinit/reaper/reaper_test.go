package reaper

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// One Reaper a process: the tests share it.
var shared = sync.OnceValues(New)

func newReaper(t *testing.T) *Reaper {
	t.Helper()
	r, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func shell(script string) *exec.Cmd { return exec.Command("/bin/sh", "-c", script) }

func ended(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatalf("process %d was not reaped", p.PID)
	}
}

func TestExitCodes(t *testing.T) {
	r := newReaper(t)
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143} {
		p, err := r.Start(shell(script))
		if err != nil {
			t.Fatal(err)
		}
		ended(t, p)
		if got := p.ExitCode(); got != want {
			t.Errorf("%s: code %d, want %d", script, got, want)
		}
	}
	if _, err := r.Start(exec.Command("/does/not/exist")); !os.IsNotExist(err) {
		t.Errorf("got %v, want not found", err)
	}
}

// Children that end before they are registered, and many at once, each keep
// their own status.
func TestManyAtOnce(t *testing.T) {
	r := newReaper(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			want := i % 120
			p, err := r.Start(shell(fmt.Sprintf("exit %d", want)))
			if err != nil {
				t.Error(err)
				return
			}
			<-p.Done()
			if got := p.ExitCode(); got != want {
				t.Errorf("process %d: code %d, want %d", i, got, want)
			}
		})
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) != 0 || len(r.early) != 0 || r.starting != 0 {
		t.Errorf("left: %d running, %d early, %d starting", len(r.running), len(r.early), r.starting)
	}
}

// An early status is not taken for that of a later child with the same pid.
func TestStaleEarlyStatus(t *testing.T) {
	r := newReaper(t)
	r.mu.Lock()
	r.starting++ // a Start that does not come back during the test
	for pid := range 1 << 16 {
		r.early[pid] = early{status: 42 << 8, starts: r.starts}
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.starting--
		clear(r.early)
		r.mu.Unlock()
	}()
	p, err := r.Start(shell("sleep 0.05; exit 5"))
	if err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	if got := p.ExitCode(); got != 5 {
		t.Errorf("code %d, want 5", got)
	}
}

func TestOrphansComeHome(t *testing.T) {
	r := newReaper(t)
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	cmd := shell("sleep 0.2 & echo $!")
	cmd.Stdout = out
	p, err := r.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	orphan := "/proc/" + strings.TrimSpace(string(b))
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(orphan); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s was not reaped", orphan)
		}
	}
	for end := time.Now().Add(time.Minute); !r.Alone(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there are children left")
		}
	}
}

func TestSignal(t *testing.T) {
	r := newReaper(t)
	cmd := shell("sleep 1000 & wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	p, err := r.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if r.Alone() {
		t.Error("alone with a child")
	}
	if err := r.SignalGroup(p, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	if !p.Status().Signaled() || p.ExitCode() != 137 {
		t.Errorf("status %v", p.Status())
	}
	// Its pid may be another's now.
	if err := r.Signal(p, unix.SIGKILL); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
}
