// Command bench measures sietch from the outside and prints Markdown: each
// figure beside another way to the same end, taken in the same run from the same
// machine. docs/benchmarks.md tells the method.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/examples/small"
)

func main() {
	sietch := flag.String("sietch", "bin/sietch", "the binary to measure")
	memory := flag.String("memory", "512M,4G", "machine sizes, one table each")
	rounds := flag.Int("rounds", 7, "rounds of each figure; forks take three times as many")
	image := flag.String("image", "", "the image small, built already; empty: build it")
	vmms := flag.String("vmms", "", "compare these, such as qemu,cloud-hypervisor, in turns, instead of the whole")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	b := &bench{bin: *sietch, rounds: *rounds, image: *image}
	measure := b.all
	if *vmms != "" {
		measure = func(sizes []string) error { return b.compare(strings.Split(*vmms, ","), sizes) }
	}
	if err := b.with(func() error { return measure(strings.Split(*memory, ",")) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	bin    string
	rounds int
	image  string
	vmm    string // empty: the one that sietch chooses
	serial int
	made   []string // sandboxes to remove
}

// with measures once the image is there, and removes what was made.
func (b *bench) with(measure func() error) (err error) {
	if b.image == "" {
		b.image = "small"
		if err := b.build(); err != nil {
			return err
		}
	}
	defer func() {
		if len(b.made) > 0 {
			if _, rmErr := b.run(append([]string{"rm", "-f"}, b.made...)...); err == nil {
				err = rmErr
			}
		}
	}()
	return measure()
}

func (b *bench) build() error {
	dir, err := os.MkdirTemp("", "sietch-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := small.WriteContext(dir); err != nil {
		return err
	}
	_, err = b.run("build", "--progress", "quiet", "-t", b.image, dir)
	return err
}

func (b *bench) all(sizes []string) error {
	for i, size := range sizes {
		f, err := b.measure(size)
		if err != nil {
			return fmt.Errorf("measure a %s machine: %w", size, err)
		}
		if i == 0 {
			fmt.Printf("%s\n\n", f.host)
		}
		f.print(os.Stdout, b.rounds)
	}
	return nil
}

// measure takes every figure of one machine size.
func (b *bench) measure(size string) (*figures, error) {
	f := &figures{size: size}
	say := func(what string) { fmt.Fprintf(os.Stderr, "bench: %s: %s\n", size, what) }

	say("cold boots")
	// The first fetches the kernel and fills caches; it is not counted.
	for i := range b.rounds + 1 {
		name, took, err := b.boot(size)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			f.boot.add(took)
		}
		if err := b.remove(name); err != nil {
			return nil, err
		}
	}

	source, _, err := b.boot(size)
	if err != nil {
		return nil, err
	}
	var box struct {
		PID        int
		VMM, Accel string
	}
	if err := b.query(&box, "inspect", source); err != nil {
		return nil, err
	}
	f.host = host(box.VMM, box.Accel)
	if err := b.probe(source, "fill", "64"); err != nil {
		return nil, err
	}

	say("execs")
	if f.exec, err = b.exec(source, 10*b.rounds); err != nil {
		return nil, err
	}

	say("commits")
	first, err := b.commit(source)
	if err != nil {
		return nil, err
	}
	f.firstPause, f.firstStored = first.pause, first.stored
	for _, c := range []struct {
		mib string
		in  *commits
	}{{"2", &f.small}, {"20", &f.large}} {
		for range b.rounds {
			if err := b.probe(source, "dirty", c.mib); err != nil {
				return nil, err
			}
			got, err := b.commit(source)
			if err != nil {
				return nil, err
			}
			c.in.pause.add(got.pause)
			c.in.total.add(got.took)
			c.in.stored = append(c.in.stored, got.stored)
		}
	}
	tip, err := b.commit(source)
	if err != nil {
		return nil, err
	}

	say("forks")
	for i := range 3*b.rounds + 1 {
		names, took, err := b.fork(1, tip.id)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			f.fork.add(took)
		}
		if err := b.remove(names...); err != nil {
			return nil, err
		}
	}
	for range min(3, b.rounds) {
		names, took, err := b.fork(16, tip.id)
		if err != nil {
			return nil, err
		}
		f.sixteen.add(took)
		if err := b.remove(names...); err != nil {
			return nil, err
		}
	}

	say("checkouts")
	for range b.rounds {
		_, took, err := b.timed("checkout", "--no-save", source, tip.id)
		if err != nil {
			return nil, err
		}
		f.checkout.add(took)
	}

	say("full stop-and-save")
	if err := b.query(&box, "inspect", source); err != nil { // checkout made a new process
		return nil, err
	}
	if box.VMM != "qemu" {
		fmt.Fprintf(os.Stderr, "bench: no full stop-and-save to compare with under %s\n", box.VMM)
	} else {
		for range b.rounds {
			s, err := fullSave(box.PID)
			if err != nil {
				return nil, fmt.Errorf("full stop-and-save: %w", err)
			}
			f.save.add(s.pause)
			f.saveBytes = append(f.saveBytes, s.bytes)
			f.saveZstd = append(f.saveZstd, s.compressed)
		}
	}
	return f, b.remove(source)
}

func (b *bench) name() string {
	b.serial++
	return fmt.Sprintf("bench%d-%d", os.Getpid(), b.serial)
}

func (b *bench) boot(size string) (string, time.Duration, error) {
	name := b.name()
	b.made = append(b.made, name)
	_, took, err := b.timed("run", "--name", name, "--memory", size, "--disk", "1G", b.image)
	return name, took, err
}

func (b *bench) fork(n int, ref string) ([]string, time.Duration, error) {
	prefix := b.name()
	out, took, err := b.timed("fork", "-n", fmt.Sprint(n), "--name", prefix, ref)
	names := strings.Fields(out)
	b.made = append(b.made, names...)
	if err == nil && len(names) != n {
		err = fmt.Errorf("fork -n %d printed %q", n, out)
	}
	return names, took, err
}

func (b *bench) remove(names ...string) error {
	if _, err := b.run(append([]string{"rm", "-f"}, names...)...); err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, n := range names {
		gone[n] = true
	}
	var left []string
	for _, n := range b.made {
		if !gone[n] {
			left = append(left, n)
		}
	}
	b.made = left
	return nil
}

func (b *bench) probe(name string, words ...string) error {
	_, err := b.run(append([]string{"exec", name, "--", "probe"}, words...)...)
	return err
}

type commit struct {
	id          string
	pause, took time.Duration
	stored      int64
}

func (b *bench) commit(name string) (commit, error) {
	out, took, err := b.timed("--json", "commit", "-m", "bench", name)
	if err != nil {
		return commit{}, err
	}
	var c struct {
		ID           string
		Memory, Disk struct {
			Stored int64 `json:"stored_bytes"`
		}
		Timing struct {
			PauseMS float64 `json:"pause_ms"`
		}
	}
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		return commit{}, fmt.Errorf("read answer of commit: %w", err)
	}
	return commit{
		id:     c.ID,
		pause:  time.Duration(c.Timing.PauseMS * float64(time.Millisecond)),
		took:   took,
		stored: c.Memory.Stored + c.Disk.Stored,
	}, nil
}

func (b *bench) query(v any, args ...string) error {
	out, err := b.run(append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("read answer of %s: %w", args[0], err)
	}
	return nil
}

func (b *bench) run(args ...string) (string, error) {
	out, _, err := b.timed(args...)
	return out, err
}

// timed runs a command and gives its whole time, process start included.
func (b *bench) timed(args ...string) (string, time.Duration, error) {
	if b.vmm != "" {
		args = append([]string{"--vmm", b.vmm}, args...)
	}
	cmd := exec.Command(b.bin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return "", took, fmt.Errorf("sietch %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), took, nil
}
