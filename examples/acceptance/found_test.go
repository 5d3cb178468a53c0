package acceptance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A machine that stands still can be saved as often as anybody likes, and goes
// on afterwards.
func TestSavePausedAgain(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	want := r.probe(t, name, "set", "paused")
	r.ok(t, "pause", name)
	r.ok(t, "commit", "-m", "once", name)
	c := query[commitInfo](t, r, "commit", "-m", "twice", name)
	fork := r.fork(t, 1, name)[0].Name
	if got := r.inspect(t, name).State; got != "paused" {
		t.Errorf("after commits the machine is %s", got)
	}
	r.ok(t, "resume", name)
	again := r.fork(t, 1, c.ID)[0].Name
	for _, box := range []string{name, fork, again} {
		if got := r.probe(t, box, "get"); got[1] != want[1] {
			t.Errorf("%s is another process: %v, want %v", box, got, want)
		}
	}
	r.remove(t, name, fork, again)
}

// A commit of the disk alone holds what programs had written, synced or not.
func TestDiskOnlyIsComplete(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	r.in(t, name, "echo kept > /root/file")
	c := query[commitInfo](t, r, "commit", "--disk-only", "-m", "disk", name)
	fork := r.fork(t, 1, c.ID)[0].Name
	if got := r.in(t, fork, "cat /root/file"); got != "kept" {
		t.Errorf("the file says %q", got)
	}
	r.remove(t, name, fork)
}

func TestExecDetached(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	began := time.Now()
	res := r.try(t, "exec", "-d", name, "--", "sh", "-c", "sleep 3; echo done > /root/done; sleep 1000")
	if took := time.Since(began); res.code != 0 || len(strings.TrimSpace(res.stdout)) < 4 || took > within(2500*time.Millisecond) {
		t.Errorf("after %s: %s", took, res)
	}
	time.Sleep(within(4 * time.Second))
	if got := r.in(t, name, "cat /root/done; ps | grep -q '[s]leep 1000' && echo runs"); got != "done\nruns" {
		t.Errorf("the detached command: %q", got)
	}
	r.remove(t, name)
}

// A guest that does not answer is given up, and left when the user says so.
func TestExecSilentGuest(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	pid := r.inspect(t, name).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	res := r.fails(t, 1, []string{"does not answer"}, "exec", name, "--", "true")
	if res.took > within(25*time.Second) {
		t.Errorf("given up after %s", res.took)
	}
	cmd := r.command(context.Background(), "exec", name, "--", "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(within(500 * time.Millisecond))
	began := time.Now()
	cmd.Process.Signal(syscall.SIGTERM)
	if code := exitCode(cmd.Wait()); code != 130 || time.Since(began) > within(2*time.Second) {
		t.Errorf("a signal ends it with %d after %s", code, time.Since(began))
	}
	syscall.Kill(pid, syscall.SIGCONT)
	if got := r.in(t, name, "echo alive"); got != "alive" {
		t.Errorf("afterwards: %q", got)
	}
	r.remove(t, name)
}

// After its machine ended, a sandbox is as good as a stopped one, and what is
// said of the end is true.
func TestAfterTheEnd(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	c := r.commit(t, name, "before")
	r.in(t, name, "echo kept > /root/file; sync")
	r.ok(t, "stop", name)
	r.ok(t, "start", name)

	// Somebody who looks at its log is not part of it.
	logs, err := filepath.Glob("/run/sietch/*/" + r.inspect(t, name).ID + "-*/vmm.log")
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs of the VMM: %v, %v", logs, err)
	}
	reader := exec.Command("tail", "-f", logs[0])
	reader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { reader.Wait(); close(gone) }()
	defer func() { reader.Process.Kill(); <-gone }()

	if err := syscall.Kill(r.inspect(t, name).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(within(5 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		s := r.inspect(t, name)
		if s.State == "failed" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("killed, it is %s", s.State)
		}
	}
	disk := query[commitInfo](t, r, "commit", "--disk-only", "-m", "after the end", name)
	fork := r.fork(t, 1, disk.ID)[0].Name
	if got := r.in(t, fork, "cat /root/file"); got != "kept" {
		t.Errorf("the file says %q", got)
	}
	r.ok(t, "checkout", name, c.ID)
	if got := r.in(t, name, "cat /root/file 2>/dev/null || echo none"); got != "none" {
		t.Errorf("after the checkout the file says %q", got)
	}
	select {
	case <-gone:
		t.Error("a process that only read the VMM's log was ended")
	default:
	}
	// And powered off by the guest itself.
	r.try(t, "exec", name, "--", "kill", "-TERM", "1")
	for deadline := time.Now().Add(within(20 * time.Second)); r.inspect(t, name).State != "stopped"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("powered off, it is %s", r.inspect(t, name).State)
		}
	}
	forks := stream[forkInfo](t, r, "fork", "--name", fresh("f"), name)
	if len(forks) != 1 || !strings.HasPrefix(forks[0].Name, "f") {
		t.Errorf("fork of a stopped sandbox: %+v", forks)
	}
	r.remove(t, name, fork, forks[0].Name)
}

// TestIncompatible is hazard 11: memory that cannot be restored here is refused
// with the reason and the way out, and nothing was given up for it.
func TestIncompatible(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	r.in(t, name, "echo kept > /root/file; sync")
	c := r.commit(t, name, "by this version")
	want := r.probe(t, name, "set", "here")
	other := &repo{dir: r.dir, env: []string{"PATH=" + newerVMM(t) + ":" + os.Getenv("PATH"), "SIETCH_CLOUD_HYPERVISOR=cloud-hypervisor"}}
	before := len(r.all(t))
	for _, args := range [][]string{
		{"fork", "--name", fresh("x"), c.ID},
		{"run", "--name", fresh("x"), c.ID},
		{"checkout", name, c.ID},
	} {
		other.fails(t, 1, []string{"cannot be restored here", "version", "99.1", "--from-disk"}, args...)
	}
	if got := r.probe(t, name, "get"); got[1] != want[1] || r.inspect(t, name).State != "running" {
		t.Errorf("after a refused checkout the machine is another one")
	}
	if now := len(r.all(t)); now != before {
		t.Errorf("%d sandboxes, there were %d", now, before)
	}
	cold := fresh("cold")
	r.ok(t, "run", "--from-disk", "--name", cold, c.ID)
	if got := r.in(t, cold, "cat /root/file"); got != "kept" {
		t.Errorf("booted from its disk, the file says %q", got)
	}
	r.remove(t, name, cold)
}

// newerVMM is a directory for PATH whose VMM says it is another version.
func newerVMM(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tool, says := "qemu-system-x86_64", "QEMU emulator version 99.1.0"
	if os.Getenv("SIETCH_VMM") == "cloud-hypervisor" {
		tool, says = "cloud-hypervisor", "cloud-hypervisor v99.1.0"
	}
	real, err := exec.LookPath(tool)
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\ncase \" $* \" in *\" --version \"*) echo '" + says + "'; exit ;; esac\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, tool), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
