package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// saveFake launches a machine of a fake and returns a saved state of it.
func saveFake(t *testing.T, s vmm.Spec) *vmm.Restore {
	t.Helper()
	m, err := New(Options{Binary: fakeBinary(t)}).Launch(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	waitTick(t, m, s.ConsoleLog)
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &vmm.Restore{Dir: t.TempDir(), Saved: m.Identity()}
	if err := errors.Join(m.SaveDevices(t.Context(), r.Dir), m.Kill()); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLaunchFailsAtEachStep: the error names the step and ends with what the
// VMM said, no process is left, and what the console said before is kept.
func TestLaunchFailsAtEachStep(t *testing.T) {
	card := &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"}
	saved := fakeSpec(t)
	restore := saveFake(t, saved)
	type trial struct {
		restore bool
		nic     *vmm.NIC
		order   string
		says    []string
	}
	var trials []trial
	for _, r := range []bool{false, true} {
		endpoints := []string{"vm.create", "vm.boot"}
		if r {
			endpoints = []string{"vm.restore", "vm.info"}
		}
		for _, e := range endpoints {
			trials = append(trials,
				trial{r, nil, "fail=" + e, []string{e, "told to fail"}},
				trial{r, nil, "die=" + e, []string{"exit status 3", "the sky is falling"}},
				trial{r, nil, "garbage=" + e, []string{e, "answer"}})
		}
	}
	if os.Geteuid() == 0 {
		trials = append(trials, trial{false, card, "fail=vm.add-net", []string{"vm.add-net", "told to fail"}},
			trial{false, card, "die=vm.add-net", []string{"exit status 3", "the sky is falling"}})
	}
	for _, c := range trials {
		t.Run(fmt.Sprintf("%s restore=%v", c.order, c.restore), func(t *testing.T) {
			s := fakeSpec(t)
			if c.restore {
				s.Restore = restore
			}
			if s.NIC = c.nic; s.NIC != nil {
				testlane.Need(t, testlane.Root)
				s.NetNS = vmmtest.Namespace(t, s.NIC.Tap)
			}
			if err := os.WriteFile(s.ConsoleLog, []byte("earlier\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			m, err := New(Options{Binary: fakeBinary(t, c.order)}).Launch(t.Context(), s)
			if err == nil {
				m.Kill()
				t.Fatal("launched")
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("got %v, want something about %q", err, says)
				}
			}
			nothingLeft(t, s)
		})
	}
}

// nothingLeft checks what a failed launch leaves.
func nothingLeft(t *testing.T, s vmm.Spec) {
	t.Helper()
	if got := processesOf(t, s.RunDir); len(got) > 0 {
		t.Errorf("processes left: %v", got)
	}
	logs, err := filepath.Glob(s.ConsoleLog + "*")
	if err != nil || len(logs) != 1 {
		t.Errorf("console logs left: %q (%v)", logs, err)
	}
	if data, err := os.ReadFile(s.ConsoleLog); err != nil || string(data) != "earlier\n" {
		t.Errorf("console log is %q (%v)", data, err)
	}
}

// processesOf lists processes with a run directory on their command line.
func processesOf(t *testing.T, runDir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), runDir+"/") {
			found = append(found, filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}

// TestSilence: a VMM that does not answer is waited for as long as the context
// allows, and no longer.
func TestSilence(t *testing.T) {
	for _, endpoint := range []string{"vm.create", "vm.boot"} {
		s := fakeSpec(t)
		if err := os.WriteFile(s.ConsoleLog, []byte("earlier\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := New(Options{Binary: fakeBinary(t, "silent="+endpoint)})
		if _, err := d.Identity(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		began := time.Now()
		m, err := d.Launch(ctx, s)
		cancel()
		if err == nil {
			m.Kill()
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
			t.Errorf("%s: got %v after %v", endpoint, err, time.Since(began))
		}
		if endpoint == "vm.create" {
			nothingLeft(t, s)
		}
	}
	m := launchFake(t, fakeSpec(t), "silent=vm.pause")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Pause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("pause: got %v", err)
	}
	// The end of the process ends the wait for it.
	ended := make(chan error, 1)
	go func() { ended <- m.Pause(context.Background()) }()
	time.Sleep(50 * time.Millisecond)
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, vmm.ErrGone) {
			t.Errorf("pause of a machine that was killed meanwhile: got %v, want ErrGone", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("pause of a machine that was killed meanwhile did not end")
	}
}

// launchFake launches a machine that is killed when the test ends.
func launchFake(t *testing.T, s vmm.Spec, orders ...string) vmm.Machine {
	t.Helper()
	m, err := New(Options{Binary: fakeBinary(t, orders...)}).Launch(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Kill() })
	return m
}

func TestCheckRefuses(t *testing.T) {
	s := fakeSpec(t)
	s.RunDir += ",fd=9"
	if _, err := New(Options{Binary: fakeBinary(t)}).Launch(t.Context(), s); err == nil || !strings.Contains(err.Error(), "RunDir") {
		t.Errorf("a run directory with a comma: got %v", err)
	}
}

// TestLogsAreAppendedTo, also by a machine whose logs were cut while it runs,
// as who keeps logs small does.
func TestLogsAreAppendedTo(t *testing.T) {
	s := fakeSpec(t)
	for _, log := range []string{s.ConsoleLog, s.MainLog} {
		if err := os.WriteFile(log, []byte("earlier\n"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	m := launchFake(t, s)
	waitTick(t, m, s.ConsoleLog)
	for _, log := range []string{s.ConsoleLog, s.MainLog} {
		data, err := os.ReadFile(log)
		if err != nil || !strings.HasPrefix(string(data), "earlier\ntick 1 ") {
			t.Errorf("%s begins %.40q (%v)", filepath.Base(log), data, err)
		}
		if err := os.Truncate(log, 0); err != nil {
			t.Fatal(err)
		}
		waitTick(t, m, log)
		if data, err := os.ReadFile(log); err != nil || !strings.HasPrefix(string(data), "tick ") {
			t.Errorf("%s was cut and begins %.40q (%v)", filepath.Base(log), data, err)
		}
	}
	if left, err := filepath.Glob(s.ConsoleLog + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left beside the console log: %q (%v)", left, err)
	}
	// One file for both works too.
	both := fakeSpec(t)
	both.MainLog = both.ConsoleLog
	m = launchFake(t, both)
	waitTick(t, m, both.ConsoleLog)
	time.Sleep(50 * time.Millisecond)
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(both.ConsoleLog)
	if lines := strings.Split(string(data), "\n"); err != nil || len(lines) < 5 || lines[0] != lines[1] || lines[2] != lines[3] {
		t.Errorf("of two logs in one file: %.200q (%v)", data, err)
	}
}

// TestRestartEnds: a guest that restarts ends the machine, and that is no error.
func TestRestartEnds(t *testing.T) {
	s := fakeSpec(t)
	s.Cmdline = "fake.restart=3"
	m := launchFake(t, s)
	other, err := New(Options{Binary: fakeBinary(t)}).Attach(t.Context(), m.Handle())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("machine goes on")
	}
	if err := errors.Join(m.Err(), other.Err()); err != nil {
		t.Errorf("got %v, want a clean end", err)
	}
	data, err := os.ReadFile(s.ConsoleLog)
	if err != nil || strings.Count(string(data), "tick ") != 3 {
		t.Errorf("console is %q (%v), want three ticks", data, err)
	}
	// Anything else that ends it is an error still.
	again := launchFake(t, fakeSpec(t), "die=vm.pause")
	if err := again.Pause(t.Context()); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("pause: got %v, want ErrGone", err)
	}
	<-again.Done()
	if err := again.Err(); err == nil || !strings.Contains(err.Error(), "the sky is falling") {
		t.Errorf("a VMM that failed ended with %v", err)
	}
}
