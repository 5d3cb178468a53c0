package machine

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]unix.Signal{
		"": unix.SIGTERM, "SIGTERM": unix.SIGTERM, "term": unix.SIGTERM, "15": unix.SIGTERM,
		"SIGQUIT": unix.SIGQUIT, "QUIT": unix.SIGQUIT, "3": unix.SIGQUIT, "SIGWINCH": unix.SIGWINCH,
		"SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMIN+0": 34, "SIGRTMAX": 64, "SIGRTMAX-14": 50, " SIGINT ": unix.SIGINT, "64": 64,
	} {
		if got, err := parseSignal(text); got != want || err != nil {
			t.Errorf("%q: got %d, %v; want %d", text, int(got), err, int(want))
		}
	}
	for _, text := range []string{"SIGWHAT", "65", "-1", "0", "SIGRTMIN+31", "SIGRTMAX+1", "RTMIN+x"} {
		if got, err := parseSignal(text); got != unix.SIGTERM || err == nil {
			t.Errorf("%q: got %d, %v; want SIGTERM and an error", text, int(got), err)
		}
	}
}

func TestPressed(t *testing.T) {
	event := func(kind, code uint16, value uint32) []byte {
		b := make([]byte, 16)
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, code)
		return binary.NativeEndian.AppendUint32(b, value)
	}
	for name, c := range map[string]struct {
		events [][]byte
		want   bool
	}{
		"pressed":       {[][]byte{event(0, 0, 0), event(1, 116, 1), event(1, 116, 0)}, true},
		"released only": {[][]byte{event(1, 116, 0)}, false},
		"another key":   {[][]byte{event(1, 30, 1), event(0, 0, 0)}, false},
		"cut off":       {[][]byte{event(1, 116, 1)[:20]}, false},
	} {
		if got := pressed(bytes.NewReader(bytes.Join(c.events, nil))); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestAskPowerOff(t *testing.T) {
	for exe, want := range map[string]unix.Signal{
		"/usr/lib/systemd/systemd": 38, "/lib/systemd/systemd": 38, "/bin/busybox": unix.SIGUSR2, "/sbin/openrc-init": 0, "": 0,
	} {
		proc := t.TempDir()
		if exe != "" {
			if err := os.Symlink(exe, filepath.Join(proc, "exe")); err != nil {
				t.Fatal(err)
			}
		}
		if got := askPowerOff(proc); got != want {
			t.Errorf("%q: got %d, want %d", exe, int(got), int(want))
		}
	}
}

func TestFindAgent(t *testing.T) {
	proc := t.TempDir()
	for pid, cmdline := range map[string]string{"1": "/sbin/init\x00", "77": AgentName + "\x00", "self": AgentName + "\x00", "9": ""} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "cmdline"), []byte(cmdline), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := findAgent(proc); got != 77 {
		t.Errorf("got %d, want 77", got)
	}
	if got := findAgent(t.TempDir()); got != 0 {
		t.Errorf("got %d, want none", got)
	}
}
