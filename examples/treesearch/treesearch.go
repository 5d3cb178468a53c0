// Package treesearch shows how a machine is searched with: from one prepared
// state it forks eight attempts, scores them, commits the best, destroys them
// all, and goes on from there. The problem is a short round trip through cities,
// and an attempt improves the trip of its parent in its own way.
package treesearch

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/examples/tools"
)

//go:embed tour.awk
var program string

const cities = 40

// Options of [Search].
type Options struct {
	Image string // with a shell and awk
	Name  string // of the sandboxes: their names begin so
	Width int    // attempts a round
	Depth int    // rounds
	Moves int    // what an attempt may try
	Say   func(format string, args ...any)
}

// Node is a state that was worth keeping.
type Node struct {
	Commit string
	Length float64
}

// Search returns the way to the best state, from the prepared one on. All
// sandboxes are destroyed; the commits stay.
func Search(ctx context.Context, t *tools.Tools, o Options) (path []Node, err error) {
	root := o.Name + "-root"
	s := search{Tools: t, Options: o}
	defer func() {
		for name := range s.there {
			_, gone := t.Call(context.WithoutCancel(ctx), "destroy_vm", tools.Args{"vm_name": name})
			err = errors.Join(err, gone)
		}
	}()
	if _, err := t.Call(ctx, "start_sandbox", tools.Args{"name": root, "image": o.Image}); err != nil {
		return nil, err
	}
	s.there = map[string]bool{root: true}
	if _, err := t.Call(ctx, "upload_file", tools.Args{"vm_name": root, "path": "tour.awk", "content": program}); err != nil {
		return nil, err
	}
	if _, err := t.Call(ctx, "upload_file", tools.Args{"vm_name": root, "path": "cities", "content": places()}); err != nil {
		return nil, err
	}
	length, err := s.attempt(ctx, root, 0, 0)
	if err != nil {
		return nil, err
	}
	best, err := s.keep(ctx, root, length)
	if err != nil {
		return nil, err
	}
	o.Say("prepared: a trip of %.2f", best.Length)
	path = append(path, best)
	for round := 1; round <= o.Depth; round++ {
		best, err = s.round(ctx, round, path[len(path)-1])
		if err != nil {
			return path, err
		}
		path = append(path, best)
	}
	return path, nil
}

// Check boots a node's state under a name of its own and measures it anew.
func Check(ctx context.Context, t *tools.Tools, name string, n Node) (err error) {
	if _, err := t.Call(ctx, "restore_snapshot", tools.Args{"vm_name": name, "snapshot_id": n.Commit}); err != nil {
		return err
	}
	defer func() {
		_, gone := t.Call(context.WithoutCancel(ctx), "destroy_vm", tools.Args{"vm_name": name})
		err = errors.Join(err, gone)
	}()
	s := search{Tools: t}
	length, err := s.attempt(ctx, name, 0, 0)
	if err != nil {
		return err
	}
	if length != n.Length {
		return fmt.Errorf("the kept state has a trip of %.4f, not %.4f", length, n.Length)
	}
	return nil
}

type search struct {
	*tools.Tools
	Options
	there map[string]bool // sandboxes
}

// round tries several ways from one state and keeps the best.
func (s *search) round(ctx context.Context, round int, from Node) (Node, error) {
	prefix := fmt.Sprintf("%s-%d", s.Name, round)
	var made struct {
		Forks []struct {
			Name    string  `json:"name"`
			ReadyMS float64 `json:"ready_ms"`
		} `json:"forks"`
	}
	if err := s.Into(ctx, "fork", tools.Args{"from": from.Commit, "n": s.Width, "prefix": prefix}, &made); err != nil {
		return Node{}, err
	}
	for _, f := range made.Forks {
		s.there[f.Name] = true
	}
	if len(made.Forks) != s.Width {
		return Node{}, fmt.Errorf("fork made %d copies, not %d", len(made.Forks), s.Width)
	}
	lengths := make([]float64, s.Width)
	var g errgroup.Group
	for i, f := range made.Forks {
		g.Go(func() (err error) {
			lengths[i], err = s.attempt(ctx, f.Name, round*1000+i, s.Moves)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Node{}, err
	}
	best := 0
	for i := range lengths {
		if lengths[i] < lengths[best] {
			best = i
		}
	}
	kept, err := s.keep(ctx, made.Forks[best].Name, lengths[best])
	if err != nil {
		return Node{}, err
	}
	s.Options.Say("round %d: %s; %s is the best", round, join(lengths), made.Forks[best].Name)
	for _, f := range made.Forks {
		if _, err := s.Call(ctx, "destroy_vm", tools.Args{"vm_name": f.Name}); err != nil {
			return Node{}, err
		}
		delete(s.there, f.Name)
	}
	return kept, nil
}

// attempt changes a sandbox's trip and measures it; without moves it is only
// measured.
func (s *search) attempt(ctx context.Context, name string, seed, moves int) (float64, error) {
	out, err := s.Call(ctx, "run_command", tools.Args{"vm_name": name,
		"cmd": fmt.Sprintf("touch tour && awk -v seed=%d -v moves=%d -v out=tour -f tour.awk cities tour", seed, moves)})
	if err != nil {
		return 0, err
	}
	length, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		return 0, fmt.Errorf("an attempt says %q", out)
	}
	return length, nil
}

func (s *search) keep(ctx context.Context, name string, length float64) (Node, error) {
	var c struct {
		ID string `json:"id"`
	}
	err := s.Into(ctx, "commit", tools.Args{"vm_name": name, "message": fmt.Sprintf("a trip of %.2f", length)}, &c)
	return Node{c.ID, length}, err
}

// places are the same in every run.
func places() string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for range cities {
		fmt.Fprintf(&b, "%.4f %.4f\n", r.Float64()*100, r.Float64()*100)
	}
	return b.String()
}

func join(lengths []float64) string {
	var all []string
	for _, l := range lengths {
		all = append(all, strconv.FormatFloat(l, 'f', 1, 64))
	}
	return strings.Join(all, " ")
}
