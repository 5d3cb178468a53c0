package main

import (
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// times are samples of one figure.
type times []time.Duration

func (t *times) add(d time.Duration) { *t = append(*t, d) }

// quantile is the smallest sample that is not less than that part of them.
func quantile[T interface{ ~int64 }](all []T, q float64) T {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[max(0, min(i, len(sorted)-1))]
}

func median[T interface{ ~int64 }](all []T) T { return quantile(all, 0.5) }

// commits are the samples of commits after one amount of change.
type commits struct {
	pause, total times
	stored       []int64
}

// figures are all samples of one machine size.
type figures struct {
	host, size          string
	boot                times
	exec                execs
	firstPause          time.Duration
	firstStored         int64
	small, large        commits
	fork, sixteen       times
	checkout            times
	save                times
	saveBytes, saveZstd []int64
}

func (f *figures) print(w io.Writer, rounds int) {
	boot, save, zstd := median(f.boot), median(f.save), median(f.saveZstd)
	fmt.Fprintf(w, "### %s of memory, medians of %d rounds\n\n", f.size, rounds)
	fmt.Fprintln(w, "| figure | sietch | beside it | ratio |")
	fmt.Fprintln(w, "|---|---|---|---|")
	row := func(what, ours, theirs, ratio string) {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", what, ours, theirs, ratio)
	}
	row("cold boot to ready", ms(boot), "–", "–")
	row("exec of true over REST, p50", ms(median(f.exec.rest)), "fork, exec and wait in the guest "+ms(f.exec.guest), ratio(median(f.exec.rest), f.exec.guest))
	row("exec of true over REST, p50", ms(median(f.exec.rest)), "the command, process start included "+ms(median(f.exec.command)), ratio(median(f.exec.rest), median(f.exec.command)))
	row("first commit, pause", ms(f.firstPause), "full save "+ms(save), ratio(f.firstPause, save))
	row("commit, 2 MiB changed: pause", ms(median(f.small.pause)), "full save "+ms(save), ratio(median(f.small.pause), save))
	row("commit, 20 MiB changed: pause", ms(median(f.large.pause)), "full save "+ms(save), ratio(median(f.large.pause), save))
	row("commit, 2 MiB changed: whole command", ms(median(f.small.total)), "full save "+ms(save), ratio(median(f.small.total), save))
	row("commit, 20 MiB changed: whole command", ms(median(f.large.total)), "full save "+ms(save), ratio(median(f.large.total), save))
	row("fork to first exec, p50", ms(median(f.fork)), "cold boot "+ms(boot), ratio(median(f.fork), boot))
	row("fork to first exec, p95", ms(quantile(f.fork, 0.95)), "cold boot "+ms(boot), ratio(quantile(f.fork, 0.95), boot))
	row("16 forks to the last one's first exec", ms(median(f.sixteen)), "cold boot "+ms(boot), ratio(median(f.sixteen), boot))
	row("checkout", ms(median(f.checkout)), "cold boot "+ms(boot), ratio(median(f.checkout), boot))
	row("first commit, stored", mib(f.firstStored), "full dump, zstd "+mib(zstd), ratio(f.firstStored, zstd))
	row("commit, 2 MiB changed: stored", mib(median(f.small.stored)), "full dump, zstd "+mib(zstd), ratio(median(f.small.stored), zstd))
	row("commit, 20 MiB changed: stored", mib(median(f.large.stored)), "full dump, zstd "+mib(zstd), ratio(median(f.large.stored), zstd))
	fmt.Fprintf(w, "\nThe full dump is %s before compression.\n\n", mib(median(f.saveBytes)))
}

func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	if v < 10 {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// ratio is ours as a part of theirs.
func ratio[T interface{ ~int64 }](ours, theirs T) string {
	switch {
	case ours <= 0 || theirs <= 0:
		return "–"
	case ours <= theirs:
		return fmt.Sprintf("1/%.1f", float64(theirs)/float64(ours))
	}
	return fmt.Sprintf("%.1f ×", float64(ours)/float64(theirs))
}

// host is a line on where the figures come from.
func host(vmm, accel string) string {
	kernel := "Linux"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel += " " + unix.ByteSliceToString(u.Release[:])
	}
	cpu := goruntime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(info), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			cpu = strings.TrimLeft(line, "\t: ")
		}
	}
	return fmt.Sprintf("%d × %s, %s, %s with %s, %s.", goruntime.NumCPU(), cpu, kernel, vmm, strings.ToUpper(accel), time.Now().UTC().Format(time.DateOnly))
}
