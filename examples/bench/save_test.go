package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// TestFullSave saves a real QEMU that has a megabyte or so of firmware and
// nothing else to show, and wants it running afterwards.
func TestFullSave(t *testing.T) {
	testlane.Need(t, testlane.QEMU)
	dir, err := os.MkdirTemp("", "qmp-") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "qmp.sock")
	cmd := exec.Command("qemu-system-x86_64", "-M", "microvm", "-accel", "tcg", "-m", "64M",
		"-display", "none", "-nodefaults", "-qmp", "unix:"+socket+",server=on,wait=off")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for range 2 {
		s, err := fullSave(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if s.pause <= 0 || s.bytes < 64<<10 || s.compressed <= 0 || s.compressed > s.bytes {
			t.Errorf("saved %+v: not a machine's dump", s)
		}
	}
	q, err := dialQMP(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer q.close()
	var status struct{ Status string }
	if err := q.ask("query-status", nil, &status); err != nil || status.Status != "running" {
		t.Errorf("after the saves the machine is %q, %v", status.Status, err)
	}
}
