package identity

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// fake is an Applier on a kernel that only notes.
type fake struct {
	*Applier
	log   []string
	clock time.Time
}

func newFake(t *testing.T, names *Names) *fake {
	t.Helper()
	a, err := New(Options{Names: names, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Applier: a, clock: time.Unix(1_800_000_000, 0)}
	f.credit = func(b []byte) error { f.log = append(f.log, "entropy "+string(b[:4])); return nil }
	f.setHostname = func(s string) error { f.log = append(f.log, "hostname "+s); return nil }
	f.now = func() time.Time { return f.clock }
	f.uptime = func() time.Duration { return 2 * time.Second }
	f.setTime = func(to time.Time) error {
		f.log = append(f.log, "clock "+to.Sub(f.clock).String())
		return nil
	}
	f.hooksDir = t.TempDir()
	return f
}

func start(cmd *exec.Cmd) (int, func() (unix.WaitStatus, error), error) {
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() (unix.WaitStatus, error) {
		st, err := cmd.Process.Wait()
		if err != nil {
			return 0, err
		}
		return unix.WaitStatus(st.Sys().(interface{ ExitStatus() int }).ExitStatus() << 8), nil
	}, nil
}

const seed = "seed0123456789012345678901234567"

func TestApply(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name string
		id   proto.Identity
		want string
		err  string
	}{
		{"everything, in order", proto.Identity{Hostname: "a", Entropy: []byte(seed), Time: now.Add(time.Hour), Fork: true},
			"entropy seed; clock 1h0m0s; hostname a", ""},
		{"back in time", proto.Identity{Entropy: []byte(seed), Time: now.Add(-time.Hour), Fork: true}, "entropy seed; clock -1h0m0s", ""},
		{"a fork's clock that is right", proto.Identity{Entropy: []byte(seed), Time: now.Add(15 * time.Millisecond), Fork: true}, "entropy seed", ""},
		{"no time", proto.Identity{Entropy: []byte(seed), Fork: true}, "entropy seed", ""},
		{"a fork without entropy", proto.Identity{Hostname: "a", Fork: true}, "", "reseed: 0 bytes of entropy, 32 are needed"},
		{"a fork with too little", proto.Identity{Entropy: []byte("short"), Fork: true}, "", "5 bytes"},
		{"a boot without", proto.Identity{Hostname: "a"}, "hostname a", ""},
		{"a boot, hardware clock right", proto.Identity{Time: now.Add(-3 * time.Second)}, "", ""},
		{"a boot long after the time was noted", proto.Identity{Time: now.Add(-time.Hour)}, "", ""},
		{"a boot without a hardware clock", proto.Identity{Time: now.Add(time.Hour)}, "clock 1h0m2s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, nil)
			err := f.Apply(context.Background(), c.id)
			if got := strings.Join(f.log, "; "); got != c.want {
				t.Errorf("did %q, want %q", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}

	t.Run("cannot reseed", func(t *testing.T) {
		f := newFake(t, nil)
		f.credit = func([]byte) error { return unix.EPERM }
		err := f.Apply(context.Background(), proto.Identity{Hostname: "a", Entropy: []byte(seed)})
		if !errors.Is(err, unix.EPERM) || len(f.log) != 0 {
			t.Errorf("got %v after %v: nothing may follow", err, f.log)
		}
	})
}

func TestHooks(t *testing.T) {
	f := newFake(t, nil)
	out := filepath.Join(t.TempDir(), "out")
	hook := func(name, script string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(f.hooksDir, name), []byte("#!/bin/sh\n"+script+"\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	hook("20-second", "echo second >> "+out, 0o755)
	hook("10-first", `echo "first $SIETCH_HOSTNAME $SIETCH_MACHINE_ID $SPICE" >> `+out, 0o755)
	hook("30-not-executable", "echo never >> "+out, 0o644)
	hook(".hidden", "echo never >> "+out, 0o755)
	f.o.Env = []string{"SPICE=melange"}
	id := proto.Identity{Hostname: "h", MachineID: "m", Entropy: []byte(seed), Fork: true}
	if err := f.Apply(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(out); string(b) != "first h m melange\nsecond\n" {
		t.Errorf("hooks wrote %q", b)
	}

	boot := id
	boot.Fork = false
	os.Remove(out)
	if err := f.Apply(context.Background(), boot); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("hooks ran at boot")
	}

	hook("15-fails", "exit 3", 0o755)
	err := f.Apply(context.Background(), id)
	if err == nil || !strings.HasSuffix(err.Error(), "15-fails: exit code 3") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(out); strings.Contains(string(b), "second") {
		t.Error("hooks went on after one failed")
	}

	hook("15-fails", "sleep 1000", 0o755)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := f.Apply(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hook that hangs: got %v", err)
	}
}
