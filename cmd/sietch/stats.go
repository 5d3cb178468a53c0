package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func statsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Category:  groupSandboxes,
		Usage:     "show what running sandboxes use",
		ArgsUsage: "[NAME...]",
		Description: `CPU is the time that the virtual machine took, of one CPU, in the last moment.
PSS is its part of the host's memory: what several sandboxes map, as forks do,
counts for each in equal shares. PRIVATE is what would be free without it, SHARED
what it has in common with others. AVAILABLE is the guest's own view, HELD what
resize keeps from it. With -f the table is printed again every second.

Examples:
sietch stats
sietch stats --json box | jq .[0].memory.pss_bytes`,
		Flags: []cli.Flag{toggle("follow,f", "print it again and again until interrupted")},
		Action: func(c *cli.Context) error {
			return runStats(c.Context, e, c.Args().Slice(), c.Bool("follow"))
		},
	}
}

// statsMoment is what CPU shares are measured over at first, statsInterval after.
const (
	statsMoment   = 200 * time.Millisecond
	statsInterval = time.Second
)

// statsEntry is one sandbox in the JSON: the measurement, and the share that
// comes of two.
type statsEntry struct {
	runtime.Stats
	CPUPercent *float64 `json:"cpu_percent"` // of one CPU; null for one that has just started
}

func runStats(ctx context.Context, e *env, names []string, follow bool) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	before, err := engine.Stats(ctx, names)
	if err != nil {
		return err
	}
	for wait := statsMoment; ; wait = statsInterval {
		if len(before) > 0 || follow {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		now, err := engine.Stats(ctx, names)
		if err != nil {
			return err
		}
		entries := shares(before, now)
		switch {
		case e.json && follow:
			for _, s := range entries {
				if err := e.object(s); err != nil {
					return err
				}
			}
		case e.json:
			return e.document(entries)
		default:
			if err := statsTable(e, entries); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		before = now
	}
}

// shares joins two measurements.
func shares(before, now []runtime.Stats) []statsEntry {
	list := []statsEntry{}
	for _, s := range now {
		entry := statsEntry{Stats: s}
		for _, b := range before {
			passed := milliseconds(s.Time.Sub(b.Time))
			if b.Name == s.Name && passed > 0 && s.CPU.TimeMS >= b.CPU.TimeMS {
				share := 100 * (s.CPU.TimeMS - b.CPU.TimeMS) / passed
				entry.CPUPercent = &share
			}
		}
		list = append(list, entry)
	}
	return list
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func statsTable(e *env, entries []statsEntry) error {
	var rows [][]string
	for _, s := range entries {
		cpu, limit, available, held, net := "", strconv.Itoa(s.CPU.CPUs), "", "", ""
		if s.CPUPercent != nil {
			cpu = fmt.Sprintf("%.0f%%", *s.CPUPercent)
		}
		if s.CPU.Limit > 0 {
			limit = strconv.FormatFloat(s.CPU.Limit, 'g', 3, 64)
		}
		if g := s.Guest; g != nil {
			available, net = size(g.AvailableBytes), size(g.RxBytes)+"/"+size(g.TxBytes)
			if g.HeldBytes > 0 {
				held = size(g.HeldBytes)
			}
		}
		m := s.Memory
		rows = append(rows, []string{s.Name, string(s.State), cpu, limit, size(m.SizeBytes), size(m.RSSBytes), size(m.PSSBytes), size(m.SharedBytes), size(m.PrivateBytes), available, held, net})
	}
	return e.table([]string{"NAME", "STATE", "CPU", "CPUS", "MEMORY", "RSS", "PSS", "SHARED", "PRIVATE", "AVAILABLE", "HELD", "NET-IN/OUT"}, rows)
}
