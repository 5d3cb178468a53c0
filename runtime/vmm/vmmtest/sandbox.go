package vmmtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

// patience bounds every wait for something that must happen.
const patience = 90 * time.Second

// bench is what the tests of one suite share.
type bench struct {
	suite  Suite
	outer  *testing.T // the suite's, for what outlives one test
	oracle *counter.Oracle
	base   *saved
}

// machine is a launched machine and the files that are its own.
type machine struct {
	vmm.Machine
	t    testing.TB
	b    *bench
	spec vmm.Spec
	read map[string]*reading // by log
}

// spec describes a cold boot with fresh files.
func (b *bench) spec(t testing.TB) vmm.Spec {
	t.Helper()
	boot := b.suite.Boot(t)
	dir := t.TempDir()
	s := vmm.Spec{
		ID:          "vmmtest",
		RunDir:      runDir(t),
		CPUs:        1,
		MemoryBytes: b.suite.MemoryBytes,
		MemoryFile:  filepath.Join(dir, "memory"),
		Kernel:      boot.Kernel,
		Initramfs:   boot.Initramfs,
		Cmdline:     boot.Cmdline,
		Disks: []vmm.Disk{
			{ID: "image", Path: filepath.Join(dir, "image"), ReadOnly: true},
			{ID: "layer", Path: filepath.Join(dir, "layer")},
		},
		ConsoleLog: filepath.Join(dir, "console.log"),
		MainLog:    filepath.Join(dir, "main.log"),
	}
	sparse(t, s.MemoryFile, s.MemoryBytes)
	sparse(t, s.Disks[0].Path, 8<<20)
	sparse(t, s.Disks[1].Path, 16<<20)
	return s
}

// runDir makes a directory with a short path.
func runDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func sparse(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// launch starts a machine that is killed when the test ends.
func (b *bench) launch(t testing.TB, d vmm.Driver, s vmm.Spec) *machine {
	t.Helper()
	m, err := d.Launch(ctx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(); err != nil {
			t.Errorf("kill at the end: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Errorf("close at the end: %v", err)
		}
	})
	return &machine{Machine: m, t: t, b: b, spec: s}
}

// cold boots a counting machine and waits for its first ticks.
func (b *bench) cold(t testing.TB) *machine {
	t.Helper()
	m := b.launch(t, b.suite.New(t), b.spec(t))
	m.advance(2)
	return m
}

// start gives a running machine. Only the first is booted, the others are
// clones of it: the contract makes no difference between the two.
func (b *bench) start(t testing.TB) *machine {
	t.Helper()
	if b.base == nil {
		m := b.cold(b.outer)
		s := m.save()
		m.must("kill", m.Kill())
		b.base = &s
	}
	m := b.base.clone(t, b.suite.New(t))
	m.mustResume()
	b.base.continues(m)
	return m
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// reading is how far a log was read and what it held.
type reading struct {
	offset      int64
	first, last uint64
}

// reports reads the ticks on a log and checks every one against the oracle,
// and that none is missing.
func (m *machine) reports(log string) (first, last uint64) {
	m.t.Helper()
	if m.read == nil {
		m.read = map[string]*reading{}
	}
	r := m.read[log]
	if r == nil {
		r = new(reading)
		m.read[log] = r
	}
	f, err := os.Open(log)
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0
	}
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, r.offset, 1<<40))
	if err != nil {
		m.t.Fatal(err)
	}
	// The last line may be half written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	r.offset += int64(len(data))
	for line := range strings.Lines(string(data)) {
		tick, sum, ok := counter.Parse(line)
		if !ok {
			continue
		}
		if r.first == 0 {
			r.first = tick
		} else if tick != r.last+1 {
			m.t.Fatalf("%s: tick %d follows %d", filepath.Base(log), tick, r.last)
		}
		if want := m.b.oracle.Sum(tick); sum != want {
			m.t.Fatalf("%s: sum of memory at tick %d is %016x, want %016x", filepath.Base(log), tick, sum, want)
		}
		r.last = tick
	}
	return r.first, r.last
}

// tick is the last tick on the console.
func (m *machine) tick() uint64 {
	m.t.Helper()
	_, last := m.reports(m.spec.ConsoleLog)
	return last
}

// advance waits until the console has n more ticks than now, all right.
func (m *machine) advance(n uint64) uint64 {
	m.t.Helper()
	start := m.tick()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if now := m.tick(); now >= start+n {
			return now
		}
		select {
		case <-m.Done():
			m.t.Fatalf("machine ended: %v\n%s", m.Err(), m.console())
		default:
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("no %d ticks after %d within %s; threads:\n%sconsole:\n%s", n, start, patience, m.threads(), m.console())
		}
	}
}

func (m *machine) console() string {
	data, _ := os.ReadFile(m.spec.ConsoleLog)
	return string(data[max(0, len(data)-2000):])
}

// threads says what the VMM's threads are doing, for when nothing happens.
func (m *machine) threads() string {
	var out strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", m.Handle().PID))
	for _, task := range tasks {
		for _, file := range []string{"comm", "stat", "wchan", "schedstat"} {
			data, _ := os.ReadFile(filepath.Join(task, file))
			fmt.Fprintf(&out, "%s ", strings.TrimSpace(string(data)))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// diskTick is the tick that the guest wrote to its disk last.
func (m *machine) diskTick() uint64 {
	m.t.Helper()
	f, err := os.Open(m.spec.Disks[1].Path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	var word [8]byte
	if _, err := f.ReadAt(word[:], 0); err != nil {
		m.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(word[:])
}

func (m *machine) mustPause()  { m.t.Helper(); m.must("pause", m.Pause(ctx(m.t))) }
func (m *machine) mustResume() { m.t.Helper(); m.must("resume", m.Resume(ctx(m.t))) }

func (m *machine) must(what string, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%s: %v", what, err)
	}
}

// memory opens the guest RAM.
func (m *machine) memory() *guestmem.Memory {
	m.t.Helper()
	h := m.Handle()
	mem, err := guestmem.Open(guestmem.Target{PID: h.PID, MemoryFile: h.MemoryFile, SizeBytes: m.spec.MemoryBytes})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { mem.Close() })
	return mem
}

// saved is a machine at one instant: what a commit is made of.
type saved struct {
	b        *bench
	spec     vmm.Spec // of the machine it was taken from
	dir      string
	memory   string
	layer    string
	identity vmm.Identity
	tick     uint64
}

// save pauses the machine, takes it down and leaves it paused.
func (m *machine) save() saved {
	m.t.Helper()
	dir := m.t.TempDir()
	s := saved{b: m.b, spec: m.spec, dir: filepath.Join(dir, "devices"),
		memory: filepath.Join(dir, "memory"), layer: filepath.Join(dir, "layer"), identity: m.Identity()}
	m.must("make directory", os.Mkdir(s.dir, 0o700))
	m.mustPause()
	m.must("save devices", m.SaveDevices(ctx(m.t), s.dir))
	copyFile(m.t, m.spec.Disks[1].Path, s.layer)
	// The dump: the parent's, with the dirty pages laid over it.
	copyFile(m.t, m.spec.MemoryFile, s.memory)
	mem := m.memory()
	pages, err := mem.Written(ctx(m.t))
	m.must("find written pages", err)
	f, err := os.OpenFile(s.memory, os.O_RDWR, 0)
	m.must("open dump", err)
	if _, err := mem.Copy(ctx(m.t), pages, f); err != nil {
		m.t.Fatal(err)
	}
	m.must("close dump", f.Close())
	// The counter's first words are somewhere in there; what the guest reported
	// last is at most a tick behind.
	s.tick = m.tick()
	return s
}

// restored describes a machine that goes on from s with files of its own.
func (s saved) restored(t testing.TB) vmm.Spec {
	t.Helper()
	dir := t.TempDir()
	spec := s.spec
	spec.RunDir = runDir(t)
	spec.MemoryFile = s.memory
	spec.Disks = append([]vmm.Disk(nil), spec.Disks...)
	spec.Disks[1].Path = filepath.Join(dir, "layer")
	copyFile(t, s.layer, spec.Disks[1].Path)
	spec.ConsoleLog = filepath.Join(dir, "console.log")
	spec.MainLog = filepath.Join(dir, "main.log")
	spec.Restore = &vmm.Restore{Dir: s.dir, Saved: s.identity}
	return spec
}

// clone launches a machine from s; it is paused.
func (s saved) clone(t testing.TB, d vmm.Driver) *machine {
	t.Helper()
	return s.b.launch(t, d, s.restored(t))
}

// continues checks that a clone goes on where it was saved.
func (s saved) continues(m *machine) {
	m.t.Helper()
	m.advance(3)
	// Up to one report was on its way out when the machine stopped.
	if first, _ := m.reports(m.spec.ConsoleLog); first < s.tick || first > s.tick+2 {
		m.t.Errorf("clone goes on at tick %d, it was saved at %d", first, s.tick)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	st, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// Zero blocks stay holes.
	buf := make([]byte, 64<<10)
	zero := make([]byte, len(buf))
	for off := int64(0); off < st.Size(); off += int64(len(buf)) {
		n, err := in.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if bytes.Equal(buf[:n], zero[:n]) {
			continue
		}
		if _, err := out.WriteAt(buf[:n], off); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(out.Truncate(st.Size()), out.Close()); err != nil {
		t.Fatal(err)
	}
}

// digest tells whether a file was written to.
func digest(t testing.TB, path string) uint32 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return h.Sum32()
}

// processesOf lists processes with a run directory on their command line.
func processesOf(t testing.TB, runDir string) (found []string) {
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
