package vmmtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

// Suite is a driver under test.
type Suite struct {
	// New makes a driver. Several are used on the same machines, as several
	// processes would.
	New func(testing.TB) vmm.Driver
	// Boot is a boot of the counting guest.
	Boot func(testing.TB) Boot
	// MemoryBytes of guest RAM.
	MemoryBytes int64
	// CounterBytes is how much of it the guest counts in.
	CounterBytes int
	// Dump, when there is one, has the VMM itself write all of guest RAM to a
	// file of exactly MemoryBytes, from offset 0 of the memory file on.
	Dump func(t testing.TB, m vmm.Machine, file string)
	// Generations is the length of the chain of saves and restores.
	Generations int
	// Clones is how many are run at once.
	Clones int
}

// Run runs the contract.
func Run(t *testing.T, s Suite) {
	b := &bench{suite: s, outer: t, oracle: counter.NewOracle(s.CounterBytes)}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"Launch", testLaunch},
		{"PauseAndResume", testPauseAndResume},
		{"SaveAndClone", testSaveAndClone},
		{"DirtySet", testDirtySet},
		{"PreCopy", testPreCopy},
		{"Chain", testChain},
		{"ManyClones", testManyClones},
		{"Attach", testAttach},
		{"Kill", testKill},
		{"Death", testDeath},
		{"PowerOff", testPowerOff},
		{"Shutdown", testShutdown},
		{"Incompatible", testIncompatible},
		{"LaunchFails", testLaunchFails},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

// readLock locks all of a file for reading, as another VMM does with an image that
// its machines have in common with ours, until the function it returns is called.
func readLock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func testLaunch(t *testing.T, b *bench) {
	d := b.suite.New(t)
	spec := b.spec(t)
	if err := os.WriteFile(spec.MainLog, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer readLock(t, spec.Disks[0].Path)()
	before := digest(t, spec.MemoryFile)
	lctx, cancel := context.WithCancel(ctx(t))
	lm, err := d.Launch(lctx, spec)
	cancel() // bounds the launch, not the machine
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Machine: lm, t: t, b: b, spec: spec}
	t.Cleanup(func() { m.Kill() })
	m.advance(3)

	h := m.Handle()
	if h.Driver != d.Name() || h.RunDir != spec.RunDir || h.MemoryFile != spec.MemoryFile || h.PID <= 0 || h.StartTime == 0 || h.BootID == "" {
		t.Errorf("handle is incomplete: %+v", h)
	}
	want, err := d.Identity(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Identity(); got != want || got.Driver != d.Name() || got.Version == "" || got.Machine == "" || got.Accel == "" || got.CPU == "" {
		t.Errorf("got identity %+v, driver says %+v", got, want)
	}
	if paused, err := m.Paused(ctx(t)); paused || err != nil {
		t.Errorf("after launch: paused %v, %v", paused, err)
	}
	if got := processesOf(t, spec.RunDir); len(got) == 0 {
		t.Error("run directory is on no command line")
	}
	sid, err := unix.Getsid(h.PID)
	if err != nil || sid != h.PID {
		t.Errorf("session of the VMM is %d (%v), want its own, %d", sid, err, h.PID)
	}
	// Console and main log are appended to.
	main := string(readFile(t, spec.MainLog))
	if !strings.HasPrefix(main, "earlier\n") {
		t.Errorf("main log was not appended to: %.40q", main)
	}
	if first, last := m.reports(spec.MainLog); first != 1 || last < 3 {
		t.Errorf("main log has ticks %d to %d", first, last)
	}
	if err := m.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	m.advance(2) // closing is not killing
	if digest(t, spec.MemoryFile) != before {
		t.Error("memory file was written to")
	}
}

func testPauseAndResume(t *testing.T, b *bench) {
	m := b.start(t)
	m.mustResume() // it runs already
	if err := m.SaveDevices(ctx(t), t.TempDir()); !errors.Is(err, vmm.ErrState) {
		t.Errorf("save devices of a running machine: got %v, want ErrState", err)
	}
	for range 10 {
		m.mustPause()
		m.mustPause()
		if paused, err := m.Paused(ctx(t)); !paused || err != nil {
			t.Fatalf("after pause: paused %v, %v", paused, err)
		}
		// The guest writes its disk before the console.
		tick, disk := m.tick(), m.diskTick()
		if disk < tick {
			t.Fatalf("paused at tick %d, disk has %d", tick, disk)
		}
		time.Sleep(30 * time.Millisecond)
		if now, d := m.tick(), m.diskTick(); now != tick || d != disk {
			t.Fatalf("paused at tick %d (disk %d), later it is %d (%d)", tick, disk, now, d)
		}
		m.mustResume()
		m.mustResume()
		if paused, err := m.Paused(ctx(t)); paused || err != nil {
			t.Fatalf("after resume: paused %v, %v", paused, err)
		}
		m.advance(2)
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Pause(done); !errors.Is(err, context.Canceled) {
		t.Errorf("pause with a dead context: got %v", err)
	}
	m.mustPause()
	m.mustResume()
	m.advance(1)
}

func testSaveAndClone(t *testing.T, b *bench) {
	d := b.suite.New(t)
	source := b.start(t)
	first := digest(t, source.spec.MemoryFile)
	source.save() // a machine that stands still may be saved as often as wanted
	s := source.save()
	dump := digest(t, s.memory)
	source.mustResume()

	one, two := s.clone(t, d), s.clone(t, b.suite.New(t))
	for _, m := range []*machine{one, two} {
		if paused, err := m.Paused(ctx(t)); !paused || err != nil {
			t.Errorf("restored machine: paused %v, %v", paused, err)
		}
		if m.Identity() != s.identity {
			t.Errorf("identity of the clone is %+v, want %+v", m.Identity(), s.identity)
		}
		if n := m.tick(); n != 0 {
			t.Errorf("clone ticks before Resume: %d", n)
		}
		m.mustResume()
	}
	s.continues(one)
	s.continues(two)
	source.advance(2)
	// A commit of a clone, and a clone of that.
	again := one.save()
	one.mustResume()
	three := again.clone(t, d)
	three.mustResume()
	again.continues(three)
	two.advance(1)

	if digest(t, source.spec.MemoryFile) != first {
		t.Error("the source's memory file was written to")
	}
	if digest(t, s.memory) != dump {
		t.Error("the dump was written to under its clones")
	}
}

// testDirtySet compares the dump made of dirty pages with the VMM's own.
func testDirtySet(t *testing.T, b *bench) {
	if b.suite.Dump == nil {
		t.Skip("this VMM has no dump of its own")
	}
	source := b.start(t)
	compare := func(m *machine, s saved) {
		t.Helper()
		own := filepath.Join(t.TempDir(), "own")
		b.suite.Dump(t, m.Machine, own)
		if got, want := readFile(t, s.memory), readFile(t, own); string(got) != string(want) {
			n := 0
			for i := 0; i+guestmem.PageBytes <= len(want) && i+guestmem.PageBytes <= len(got); i += guestmem.PageBytes {
				if string(got[i:i+guestmem.PageBytes]) != string(want[i:i+guestmem.PageBytes]) {
					n++
				}
			}
			t.Errorf("dump differs from the VMM's own in %d pages (%d and %d bytes)", n, len(got), len(want))
		}
	}
	s := source.save()
	compare(source, s)
	clone := s.clone(t, b.suite.New(t))
	// Right after the restore, with most pages never touched.
	untouched := clone.save()
	compare(clone, untouched)
	clone.mustResume()
	s.continues(clone)
	compare(clone, clone.save())
}

// testPreCopy takes a machine the way a commit does: most of the memory while
// it runs, the rest under the pause, with a tracker that goes on after it.
func testPreCopy(t *testing.T, b *bench) {
	m := b.start(t)
	mem := m.memory()
	tracker, err := mem.Track(ctx(t))
	m.must("track", err)
	defer tracker.Close()
	t.Logf("tracker: %s", tracker.Name())
	parent := m.spec.MemoryFile
	for round := range 3 {
		m.advance(2)
		s := saved{b: b, spec: m.spec, dir: t.TempDir(), memory: filepath.Join(t.TempDir(), "memory"),
			layer: filepath.Join(t.TempDir(), "layer"), identity: m.Identity()}
		copyFile(t, parent, s.memory)
		dump, err := os.OpenFile(s.memory, os.O_RDWR, 0)
		m.must("open dump", err)
		pages, err := tracker.Collect(ctx(t))
		m.must("collect", err)
		_, err = mem.Copy(ctx(t), pages, dump)
		m.must("copy", err)
		m.advance(1)

		m.mustPause()
		start := time.Now()
		late, err := tracker.Recollect(ctx(t))
		m.must("collect again", err)
		held, err := guestmem.NewContents(late.Bytes())
		m.must("make room", err)
		m.must("read", mem.Read(ctx(t), late, held))
		m.must("save devices", m.SaveDevices(ctx(t), s.dir))
		copyFile(t, m.spec.Disks[1].Path, s.layer)
		s.tick = m.tick()
		took := time.Since(start)
		m.mustResume()
		_, err = held.Store(ctx(t), dump, m.spec.MemoryBytes)
		m.must("store", errors.Join(err, held.Free(), dump.Close()))
		t.Logf("round %d: %d KiB while running, %d KiB in %v under the pause", round, pages.Bytes()>>10, late.Bytes()>>10, took)

		clone := s.clone(t, b.suite.New(t))
		clone.mustResume()
		s.continues(clone)
		clone.must("kill", clone.Kill())
		parent = s.memory
	}
	m.advance(2)
}

func testChain(t *testing.T, b *bench) {
	m := b.start(t)
	for generation := range b.suite.Generations {
		s := m.save()
		before := digest(t, m.spec.MemoryFile)
		m.must("kill", m.Kill())
		if digest(t, m.spec.MemoryFile) != before {
			t.Fatalf("generation %d: memory file changed", generation)
		}
		m = s.clone(t, b.suite.New(t))
		m.mustResume()
		s.continues(m)
		if disk := m.diskTick(); disk < s.tick {
			t.Fatalf("generation %d: disk went back to tick %d, machine was saved at %d", generation, disk, s.tick)
		}
	}
}

func testManyClones(t *testing.T, b *bench) {
	source := b.start(t)
	s := source.save()
	source.mustResume()
	type result struct {
		m   vmm.Machine
		err error
	}
	var specs []vmm.Spec
	for range b.suite.Clones {
		specs = append(specs, s.restored(t))
	}
	results := make([]chan result, len(specs))
	for i, spec := range specs {
		results[i] = make(chan result, 1)
		go func() {
			m, err := b.suite.New(t).Launch(ctx(t), spec)
			if err == nil {
				err = m.Resume(ctx(t))
			}
			results[i] <- result{m, err}
		}()
	}
	var clones []*machine
	for i, c := range results {
		r := <-c
		if r.m != nil {
			t.Cleanup(func() { r.m.Kill() })
		}
		if r.err != nil {
			t.Errorf("clone %d: %v", i, r.err)
			continue
		}
		clones = append(clones, &machine{Machine: r.m, t: t, b: b, spec: specs[i]})
	}
	for _, m := range clones {
		s.continues(m)
		m.must("kill", m.Kill()) // the others have the processor
	}
	source.advance(1)
}

func testAttach(t *testing.T, b *bench) {
	m := b.start(t)
	h := m.Handle()
	other := b.suite.New(t)
	am, err := other.Attach(ctx(t), h)
	if err != nil {
		t.Fatal(err)
	}
	a := &machine{Machine: am, t: t, b: b, spec: m.spec}
	if a.Handle() != h || a.Identity() != m.Identity() {
		t.Errorf("attached: got %+v %+v, want %+v %+v", a.Handle(), a.Identity(), h, m.Identity())
	}
	a.mustPause()
	if paused, err := m.Paused(ctx(t)); !paused || err != nil {
		t.Errorf("paused by another: %v, %v", paused, err)
	}
	a.must("save devices", a.SaveDevices(ctx(t), t.TempDir()))
	m.mustResume()
	a.advance(2)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	m.advance(1)

	for what, wrong := range map[string]func(*vmm.Handle){
		"a later process of that pid": func(h *vmm.Handle) { h.StartTime++ },
		"an earlier boot":             func(h *vmm.Handle) { h.BootID = "00000000-0000-0000-0000-000000000000" },
		"no such pid":                 func(h *vmm.Handle) { h.PID = 1 << 22 },
	} {
		w := h
		wrong(&w)
		if _, err := other.Attach(ctx(t), w); !errors.Is(err, vmm.ErrGone) {
			t.Errorf("%s: got %v, want ErrGone", what, err)
		}
	}
	if w := h; true {
		w.Driver = "another"
		if _, err := other.Attach(ctx(t), w); err == nil || errors.Is(err, vmm.ErrGone) {
			t.Errorf("handle of another driver: got %v", err)
		}
	}
	m.advance(1)
}

func testKill(t *testing.T, b *bench) {
	m := b.start(t)
	other, err := b.suite.New(t).Attach(ctx(t), m.Handle())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
		t.Fatal("done before it was killed")
	default:
	}
	for range 3 {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []vmm.Machine{m, other} {
		gone(t, x)
		if err := x.Kill(); err != nil {
			t.Errorf("kill again: %v", err)
		}
		if err := errors.Join(x.Close(), x.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if m.Err() == nil {
		t.Error("a killed machine did not end cleanly")
	}
	if _, err := b.suite.New(t).Attach(ctx(t), m.Handle()); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("attach to a killed machine: got %v, want ErrGone", err)
	}
	if left := processesOf(t, m.spec.RunDir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// gone checks that everybody is told that the machine has ended.
func gone(t *testing.T, m vmm.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("end was not noticed")
	}
	for what, do := range map[string]func() error{
		"pause":        func() error { return m.Pause(ctx(t)) },
		"resume":       func() error { return m.Resume(ctx(t)) },
		"paused":       func() error { _, err := m.Paused(ctx(t)); return err },
		"save devices": func() error { return m.SaveDevices(ctx(t), t.TempDir()) },
	} {
		if err := do(); !errors.Is(err, vmm.ErrGone) {
			t.Errorf("%s of an ended machine: got %v, want ErrGone", what, err)
		}
	}
	if err := m.Shutdown(ctx(t)); err != nil {
		t.Errorf("shut down an ended machine: %v", err)
	}
}

func testDeath(t *testing.T, b *bench) {
	m := b.start(t)
	other, err := b.suite.New(t).Attach(ctx(t), m.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(m.Handle().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, x := range []vmm.Machine{m, other} {
		gone(t, x)
		if x.Err() == nil {
			t.Error("a machine that was killed from outside ended cleanly")
		}
	}
}

func testPowerOff(t *testing.T, b *bench) {
	spec := b.spec(t)
	spec.Cmdline += " vmmtest.ticks=3"
	m := b.launch(t, b.suite.New(t), spec)
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatalf("guest that powered off is still there; threads:\n%sconsole:\n%s", m.threads(), m.console())
	}
	if err := m.Err(); err != nil {
		t.Errorf("a guest that powered off: got %v, want a clean end", err)
	}
	if n := m.tick(); n != 3 {
		t.Errorf("got %d ticks, want 3", n)
	}
}

// testShutdown: the counting guest does not know what a power button is.
func testShutdown(t *testing.T, b *bench) {
	m := b.start(t)
	m.mustPause()
	short, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := m.Shutdown(short); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown: got %v, want nil or the context's error", err)
	}
	gone(t, m)
}

func testIncompatible(t *testing.T, b *bench) {
	m := b.start(t)
	s := m.save()
	m.must("kill", m.Kill())
	d := b.suite.New(t)
	for _, c := range []struct {
		what   string
		change func(*vmm.Spec)
		says   string
	}{
		{"driver", func(s *vmm.Spec) { s.Restore.Saved.Driver = "bochs" }, "bochs"},
		{"version", func(s *vmm.Spec) { s.Restore.Saved.Version = "1.2.3" }, "1.2"},
		{"machine", func(s *vmm.Spec) { s.Restore.Saved.Machine = "isapc" }, "isapc"},
		{"accelerator", func(s *vmm.Spec) { s.Restore.Saved.Accel = "hax" }, "hax"},
		{"cpu", func(s *vmm.Spec) { s.Restore.Saved.CPU = "486" }, "486"},
		{"number of cpus", func(s *vmm.Spec) { s.CPUs = 2 }, "CPUs"},
		{"memory", func(s *vmm.Spec) { s.MemoryBytes -= 1 << 20 }, "memory"},
		{"fewer disks", func(s *vmm.Spec) { s.Disks = s.Disks[:1] }, "disks"},
		{"another disk", func(s *vmm.Spec) { s.Disks[1].ID = "data" }, "data"},
		{"size of a disk", func(s *vmm.Spec) {
			if err := os.Truncate(s.Disks[1].Path, 17<<20); err != nil {
				t.Fatal(err)
			}
		}, "disk 1"},
		{"no state", func(s *vmm.Spec) { s.Restore.Dir = t.TempDir() }, ""},
	} {
		spec := s.restored(t)
		c.change(&spec)
		m, err := d.Launch(ctx(t), spec)
		if err == nil {
			m.Kill()
		}
		if !errors.Is(err, vmm.ErrIncompatible) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("other %s: got %v, want ErrIncompatible naming %q", c.what, err, c.says)
		}
		if left := processesOf(t, spec.RunDir); len(left) > 0 {
			t.Errorf("other %s: processes left: %v", c.what, left)
		}
	}
	// Unchanged it is accepted.
	good := s.clone(t, d)
	good.mustResume()
	s.continues(good)
}

func testLaunchFails(t *testing.T, b *bench) {
	d := b.suite.New(t)
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		what   string
		change func(*vmm.Spec)
		says   string
	}{
		{"no memory file", func(s *vmm.Spec) { s.MemoryFile = missing }, "missing"},
		{"no disk", func(s *vmm.Spec) { s.Disks[0].Path = missing }, "missing"},
		{"no kernel", func(s *vmm.Spec) { s.Kernel = missing }, "missing"},
		{"relative path", func(s *vmm.Spec) { s.Kernel = "vmlinuz" }, "Kernel"},
		{"no cpus", func(s *vmm.Spec) { s.CPUs = 0 }, "CPUs"},
		{"same id twice", func(s *vmm.Spec) { s.Disks[1].ID = s.Disks[0].ID }, "twice"},
		{"no namespace", func(s *vmm.Spec) { s.NetNS = missing }, "missing"},
		{"no state", func(s *vmm.Spec) { s.Restore = &vmm.Restore{Dir: missing} }, ""},
	} {
		spec := b.spec(t)
		c.change(&spec)
		start := time.Now()
		m, err := d.Launch(ctx(t), spec)
		if err == nil {
			m.Kill()
			t.Errorf("%s: launched", c.what)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want something about %q", c.what, err, c.says)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: noticed after %v", c.what, took)
		}
		if left := processesOf(t, spec.RunDir); len(left) > 0 {
			t.Errorf("%s: processes left: %v", c.what, left)
		}
	}
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	spec := b.spec(t)
	if m, err := d.Launch(dead, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("launch with a dead context: got %v", err)
		if err == nil {
			m.Kill()
		}
	}
	if left := processesOf(t, spec.RunDir); len(left) > 0 {
		t.Errorf("cancelled: processes left: %v", left)
	}
}
