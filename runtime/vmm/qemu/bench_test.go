package qemu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
)

// BenchmarkMachine measures the steps of commit and fork, with a full dump by
// QEMU of the same machine for comparison.
func BenchmarkMachine(b *testing.B) {
	testlane.Need(b, testlane.Root, testlane.QEMU)
	for _, mib := range []int64{512, 4096} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) { benchMachine(b, mib<<20) })
	}
}

func benchMachine(b *testing.B, memory int64) {
	boot := guest(b)
	dir := b.TempDir()
	d := qemu.New(qemu.Options{TrialCache: filepath.Join(dir, "trial")})
	next := 0
	spec := func() vmm.Spec {
		next++
		name := filepath.Join(dir, strconv.Itoa(next))
		run, err := os.MkdirTemp("", "vmm")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { os.RemoveAll(run) })
		for file, size := range map[string]int64{"-image": 1 << 20, "-layer": 1 << 20, "-ram": memory} {
			if err := os.WriteFile(name+file, nil, 0o600); err != nil {
				b.Fatal(err)
			}
			if err := os.Truncate(name+file, size); err != nil {
				b.Fatal(err)
			}
		}
		return vmm.Spec{
			ID: "bench", RunDir: run, CPUs: 1, MemoryBytes: memory, MemoryFile: name + "-ram",
			Kernel: boot.Kernel, Initramfs: boot.Initramfs, Cmdline: boot.Cmdline,
			Disks:      []vmm.Disk{{ID: "image", Path: name + "-image", ReadOnly: true}, {ID: "layer", Path: name + "-layer"}},
			ConsoleLog: name + "-console", MainLog: name + "-main",
		}
	}
	launch := func(s vmm.Spec) vmm.Machine {
		b.Helper()
		m, err := d.Launch(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { m.Kill() })
		return m
	}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ticks := func(s vmm.Spec, n int) {
		b.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Microsecond) {
			data, _ := os.ReadFile(s.ConsoleLog)
			if strings.Count(string(data), "tick ") >= n {
				return
			}
			if time.Now().After(deadline) {
				b.Fatalf("no ticks: %s", data)
			}
		}
	}
	source := spec()
	began := time.Now()
	m := launch(source)
	ticks(source, 1)
	b.Logf("cold boot to first tick: %v", time.Since(began))
	ticks(source, 5)

	mem, err := guestmem.Open(guestmem.Target{PID: m.Handle().PID, MemoryFile: source.MemoryFile, SizeBytes: memory})
	must(err)
	defer mem.Close()
	began = time.Now()
	tracker, err := mem.Track(b.Context())
	must(err)
	b.Logf("tracker %s attached in %v", tracker.Name(), time.Since(began))

	state := filepath.Join(dir, "state")
	dump := filepath.Join(dir, "dump")
	contents, err := guestmem.NewContents(256 << 20)
	must(err)
	defer contents.Free()
	commit := func() (pause, total time.Duration, early, late int64) {
		must(os.RemoveAll(state))
		must(os.Mkdir(state, 0o700))
		out, err := os.OpenFile(dump, os.O_CREATE|os.O_RDWR, 0o600)
		must(err)
		defer out.Close()
		began := time.Now()
		first, err := tracker.Collect(b.Context())
		must(err)
		_, err = mem.Copy(b.Context(), first, out)
		must(err)
		began2 := time.Now()
		must(m.Pause(b.Context()))
		rest, err := tracker.Recollect(b.Context())
		must(err)
		must(mem.Read(b.Context(), rest, contents))
		must(m.SaveDevices(b.Context(), state))
		must(m.Resume(b.Context()))
		pause = time.Since(began2)
		_, err = contents.Store(b.Context(), out, memory)
		must(err)
		return pause, time.Since(began), first.Bytes(), rest.Bytes()
	}
	pause, total, early, late := commit()
	b.Logf("first commit: pause %v, total %v, %d MiB while running, %d KiB under the pause", pause, total, early>>20, late>>10)

	b.Run("commit", func(b *testing.B) {
		var pauses, totals time.Duration
		for b.Loop() {
			time.Sleep(50 * time.Millisecond)
			pause, total, _, _ := commit()
			pauses, totals = pauses+pause, totals+total
		}
		b.ReportMetric(float64(pauses.Microseconds())/1e3/float64(b.N), "pause-ms")
		b.ReportMetric(float64(totals.Microseconds())/1e3/float64(b.N), "total-ms")
	})
	b.Run("full-dump", func(b *testing.B) {
		var pauses time.Duration
		for b.Loop() {
			began := time.Now()
			must(m.Pause(b.Context()))
			must(qemu.DumpMemory(b.Context(), m, filepath.Join(dir, "full"), min(memory, 3<<30)))
			must(m.Resume(b.Context()))
			pauses += time.Since(began)
		}
		os.Remove(filepath.Join(dir, "full"))
		b.ReportMetric(float64(pauses.Microseconds())/1e3/float64(b.N), "pause-ms")
	})
	commit()
	b.Run("fork", func(b *testing.B) {
		var cpu, launched, ticked time.Duration
		pss := int64(0)
		for b.Loop() {
			s := spec()
			s.MemoryFile, s.Restore = dump, &vmm.Restore{Dir: state, Saved: m.Identity()}
			began := time.Now()
			c := launch(s)
			must(c.Resume(b.Context()))
			launched += time.Since(began)
			cpu += cpuTime(b, c.Handle().PID)
			ticks(s, 1)
			ticked += time.Since(began)
			pss += pssBytes(b, c.Handle().PID)
			must(c.Kill())
		}
		n := float64(b.N)
		b.ReportMetric(float64(launched.Microseconds())/1e3/n, "running-ms")
		b.ReportMetric(float64(cpu.Microseconds())/1e3/n, "vmm-cpu-ms")
		b.ReportMetric(float64(ticked.Microseconds())/1e3/n, "first-tick-ms")
		b.ReportMetric(float64(pss)/n/(1<<20), "pss-MiB")
	})
}

// cpuTime is what the threads of a process have used so far.
func cpuTime(b *testing.B, pid int) (sum time.Duration) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, t := range tasks {
		data, _ := os.ReadFile(t)
		f := strings.Fields(string(data))
		if len(f) > 0 {
			ns, _ := strconv.ParseInt(f[0], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

func pssBytes(b *testing.B, pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}
