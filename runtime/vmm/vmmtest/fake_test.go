package vmmtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

func TestFakeContract(t *testing.T) {
	none := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(none, []byte("not booted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	Run(t, Suite{
		New:          func(testing.TB) vmm.Driver { return &Fake{CounterBytes: 256 << 10} },
		Boot:         func(testing.TB) Boot { return Boot{Kernel: none} },
		MemoryBytes:  40 << 20,
		CounterBytes: 256 << 10,
		Dump: func(t testing.TB, m vmm.Machine, file string) {
			mem, err := os.Open(filepath.Join("/proc", strconv.Itoa(m.Handle().PID), "mem"))
			if err != nil {
				t.Fatal(err)
			}
			defer mem.Close()
			if err := os.WriteFile(file, mapped(t, m, mem), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Generations: 20,
		Clones:      16,
	})
}

// mapped reads the one mapping a fake has of its memory file.
func mapped(t testing.TB, m vmm.Machine, mem *os.File) []byte {
	t.Helper()
	maps := string(readFile(t, filepath.Join("/proc", strconv.Itoa(m.Handle().PID), "maps")))
	for line := range strings.Lines(maps) {
		if !strings.HasSuffix(line, m.Handle().MemoryFile+"\n") {
			continue
		}
		var start, end int64
		if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, end-start)
		if _, err := mem.ReadAt(data, start); err != nil {
			t.Fatal(err)
		}
		return data
	}
	t.Fatal("memory file is not mapped")
	return nil
}

// TestFakeLeavesNothing makes and ends many machines.
func TestFakeLeavesNothing(t *testing.T) {
	b := &bench{suite: Suite{MemoryBytes: 32 << 20, CounterBytes: 4096, Boot: func(testing.TB) Boot {
		return Boot{Kernel: "/proc/self/exe"}
	}}, outer: t}
	d := &Fake{CounterBytes: 4096}
	count := func() (fds int) {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := 0
	for n := range 40 {
		spec := b.spec(t)
		m, err := d.Launch(ctx(t), spec)
		if err != nil {
			t.Fatal(err)
		}
		a, err := d.Attach(ctx(t), m.Handle())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []vmm.Machine{m, a} {
			if err := x.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if left := processesOf(t, spec.RunDir); len(left) > 0 {
			t.Fatalf("processes left: %v", left)
		}
		if n == 5 {
			before = count()
		}
	}
	if after := count(); after > before {
		t.Errorf("%d open files after 40 machines, %d after 5", after, before)
	}
}

func TestGuestProgram(t *testing.T) {
	elf := GuestProgram(t)
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) || bytes.Contains(elf, []byte("/lib64/ld-linux")) {
		t.Error("guest is not a static ELF program")
	}
	if a := Archive(t, map[string][]byte{"a/b": []byte("c")}); !bytes.HasPrefix(a, []byte("070701")) {
		t.Errorf("archive starts with %q", a[:6])
	}
}
