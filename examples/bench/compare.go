package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// compared are the samples of one VMM.
type compared struct {
	vmm, host                              string
	boot, pause, commit, fork, n, checkout times
}

// compare measures VMMs in turns, so that what else the host does meets all of
// them alike.
func (b *bench) compare(vmms, sizes []string) error {
	for i, size := range sizes {
		all := make([]*compared, len(vmms))
		sources := make([]string, len(vmms))
		tips := make([]string, len(vmms))
		for v, vmm := range vmms {
			b.vmm, all[v] = vmm, &compared{vmm: vmm}
			// Kernel and caches are warm after it.
			name, _, err := b.boot(size)
			if err != nil {
				return err
			}
			var box struct{ VMM, Accel string }
			if err := b.query(&box, "inspect", name); err != nil {
				return err
			}
			all[v].host = host(box.VMM, box.Accel)
			if err := b.probe(name, "fill", "32"); err != nil {
				return err
			}
			if _, err := b.commit(name); err != nil {
				return err
			}
			sources[v] = name
		}
		for round := range b.rounds {
			fmt.Fprintf(os.Stderr, "bench: %s: round %d of %d\n", size, round+1, b.rounds)
			for v, vmm := range vmms {
				b.vmm = vmm
				var err error
				if tips[v], err = b.turn(all[v], size, sources[v]); err != nil {
					return fmt.Errorf("measure %s: %w", vmm, err)
				}
			}
		}
		for v, vmm := range vmms {
			b.vmm = vmm
			names, took, err := b.fork(compareForks, tips[v])
			if err != nil {
				return err
			}
			all[v].n.add(took)
			if err := b.remove(append(names, sources[v])...); err != nil {
				return err
			}
		}
		b.vmm = ""
		if i == 0 {
			for _, c := range all {
				fmt.Printf("%s\n\n", c.host)
			}
		}
		printCompared(os.Stdout, size, b.rounds, all)
	}
	return nil
}

// compareForks are started at once at the end.
const compareForks = 8

// turn takes one sample of each figure and returns the commit it made.
func (b *bench) turn(c *compared, size, source string) (string, error) {
	name, took, err := b.boot(size)
	if err != nil {
		return "", err
	}
	c.boot.add(took)
	if err := b.remove(name); err != nil {
		return "", err
	}
	if err := b.probe(source, "dirty", "2"); err != nil {
		return "", err
	}
	made, err := b.commit(source)
	if err != nil {
		return "", err
	}
	c.pause.add(made.pause)
	c.commit.add(made.took)
	for range 3 {
		names, took, err := b.fork(1, made.id)
		if err != nil {
			return "", err
		}
		c.fork.add(took)
		if err := b.remove(names...); err != nil {
			return "", err
		}
	}
	_, took, err = b.timed("checkout", "--no-save", source, made.id)
	c.checkout.add(took)
	return made.id, err
}

func printCompared(w io.Writer, size string, rounds int, all []*compared) {
	var heads, rules []string
	for _, c := range all {
		heads, rules = append(heads, c.vmm), append(rules, "---")
	}
	fmt.Fprintf(w, "### %s of memory, medians of %d rounds in turns\n\n", size, rounds)
	fmt.Fprintf(w, "| figure | %s | ratio of the last to the first |\n|---|%s|---|\n", strings.Join(heads, " | "), strings.Join(rules, "|"))
	for _, row := range []struct {
		what string
		of   func(*compared) times
	}{
		{"cold boot to ready", func(c *compared) times { return c.boot }},
		{"commit, 2 MiB changed: pause", func(c *compared) times { return c.pause }},
		{"commit, 2 MiB changed: whole command", func(c *compared) times { return c.commit }},
		{"fork to first exec", func(c *compared) times { return c.fork }},
		{fmt.Sprintf("%d forks to the last one's first exec, once", compareForks), func(c *compared) times { return c.n }},
		{"checkout", func(c *compared) times { return c.checkout }},
	} {
		var cells []string
		for _, c := range all {
			cells = append(cells, ms(median(row.of(c))))
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", row.what, strings.Join(cells, " | "), ratio(median(row.of(all[len(all)-1])), median(row.of(all[0]))))
	}
	fmt.Fprintln(w)
}
