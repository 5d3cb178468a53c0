package netplumb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	undoTime     = 10 * time.Second // for taking back what a failed call did
	sweepWorkers = 8                // namespaces removed at a time
)

// Up makes the kernel match n: it compares what is there with what n asks for
// and makes the difference. It is idempotent; calling it again with other ports
// changes them and nothing else. When it fails, what it did is undone and the
// error may be a *PortError, ErrAddr or ErrExhausted.
func (p *Plumber) Up(ctx context.Context, n Network) (err error) {
	if err := p.usable(); err != nil {
		return err
	}
	if err := n.check(); err != nil {
		return fmt.Errorf("check network of %q: %w", n.ID, err)
	}
	if n.Mode == NAT && len(n.Upstream) == 0 {
		n.Upstream, _ = hostResolvers(p.readFile)
	}
	release, err := p.ids.acquire(ctx, n.ID)
	if err != nil {
		return err
	}
	defer release()

	var done []step
	defer func() {
		if err != nil {
			err = fmt.Errorf("set up network of %s: %w", n.ID, errors.Join(err, p.undo(ctx, done)))
		}
	}()

	have, err := p.kernel.cell(ctx, n.ID)
	if err != nil {
		return err
	}
	if err := p.run(ctx, insideSteps(have, n, p.guestRules(n)), &done); err != nil {
		return err
	}

	unlock, err := p.lock.acquire(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	w, err := p.kernel.shared(ctx)
	if err != nil {
		return err
	}
	have.elements = w.cells[n.ID].elements
	w.cells[n.ID] = have
	want, err := p.withNetwork(w, n, func() ([]netip.Prefix, error) { return p.kernel.occupied(ctx) })
	if err != nil {
		return err
	}
	if err := p.checkPorts(ctx, have, n); err != nil {
		return err
	}
	var hostDone []step
	if err := p.run(ctx, hostSteps(w, want), &hostDone); err != nil {
		return errors.Join(err, p.undo(ctx, hostDone)) // while the lock is held
	}
	return nil
}

// checkPorts refuses ports that somebody outside this instance has. The
// instance's own were compared in withNetwork.
func (p *Plumber) checkPorts(ctx context.Context, have cell, n Network) error {
	for _, q := range n.Ports {
		q.HostIP = q.hostIP()
		mine := func(e element) bool { return e.kind == port && e.port.overlaps(q) }
		if slices.ContainsFunc(have.elements, mine) {
			continue
		}
		reason, err := p.kernel.taken(ctx, q)
		if err != nil {
			return fmt.Errorf("look for users of host port %s: %w", q, err)
		}
		if reason != "" {
			return &PortError{Port: q, Reason: reason}
		}
	}
	return nil
}

// Down removes the network of a sandbox and waits until it is gone. With the
// last one go the bridge and the tables, and forwarding is as it was before. It
// is idempotent. It does not end processes inside the namespace, which lose
// their connections and keep the namespace alive, without a name, until they
// end.
func (p *Plumber) Down(ctx context.Context, id string) error {
	if err := p.usable(); err != nil {
		return err
	}
	if !validID(id) {
		return fmt.Errorf("take down network of %q: %w", id, ErrNotFound)
	}
	release, err := p.ids.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	// Both parts are tried, whatever becomes of the other.
	err = p.remove(ctx, func(w world) world {
		delete(w.cells, id)
		return w
	})
	err = errors.Join(err, p.removeInside(ctx, id), p.kernel.tidy(ctx))
	if err != nil {
		return fmt.Errorf("take down network of %s: %w", id, err)
	}
	return nil
}

// remove takes from the host what without leaves out of the world.
func (p *Plumber) remove(ctx context.Context, without func(world) world) error {
	unlock, err := p.lock.acquire(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	have, err := p.kernel.tables(ctx)
	if err != nil {
		return err
	}
	want := without(have.clone())
	if want.idle() {
		if have, err = p.kernel.shared(ctx); err != nil {
			return err
		}
		want = withoutIdle(without(have.clone()))
	}
	return p.run(ctx, hostSteps(have, want), nil)
}

// removeInside removes what may be left of a sandbox's own part. Looking first
// would take as long.
func (p *Plumber) removeInside(ctx context.Context, id string) error {
	return p.run(ctx, []step{{verb: dropNamespace, id: id}, {verb: dropVeth, id: id}}, nil)
}

// Sweep removes every kernel object of this instance that keep does not own,
// whatever state a crash left it in, and returns the ids of the sandboxes it
// removed. Forwarded ports that keep does not name go too. Networks of keep
// that are missing are not made. A network that is being made at this moment
// has to be in keep.
func (p *Plumber) Sweep(ctx context.Context, keep []Network) (removed []string, err error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	kept := map[string]Network{}
	for _, n := range keep {
		kept[n.ID] = n
	}
	present, err := p.kernel.ids(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep networks: %w", err)
	}
	gone := map[string]bool{}
	for _, id := range present {
		if _, ok := kept[id]; !ok {
			gone[id] = true
		}
	}
	err = p.remove(ctx, func(w world) world {
		for id, c := range w.cells {
			n, ok := kept[id]
			if !ok {
				gone[id] = true
				delete(w.cells, id)
				continue
			}
			c.elements = slices.DeleteFunc(slices.Clone(c.elements), func(e element) bool {
				return n.Mode != NAT || e.addr != n.Addr || e.kind == port && !slices.ContainsFunc(n.Ports, e.port.same)
			})
			w.cells[id] = c
		}
		return w
	})
	if err != nil {
		return nil, fmt.Errorf("sweep networks: %w", err)
	}

	var g errgroup.Group
	g.SetLimit(sweepWorkers)
	var mu sync.Mutex
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		g.Go(func() error {
			err := p.sweepOne(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("sweep network of %s: %w", id, err))
			} else {
				removed = append(removed, id)
			}
			return nil
		})
	}
	g.Wait()
	if err := p.kernel.tidy(ctx); err != nil {
		errs = append(errs, fmt.Errorf("sweep networks: %w", err))
	}
	slices.Sort(removed)
	return removed, errors.Join(errs...)
}

func (p *Plumber) sweepOne(ctx context.Context, id string) error {
	release, err := p.ids.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return p.removeInside(ctx, id)
}

// State returns the networks of this instance as the kernel has them, sorted by
// id. What is there of a half-made one is returned too.
func (p *Plumber) State(ctx context.Context) ([]Network, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	w, err := p.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at networks: %w", err)
	}
	var ns []Network
	for _, id := range slices.Sorted(maps.Keys(w.cells)) {
		ns = append(ns, w.cells[id].network(id))
	}
	return ns, nil
}

// look returns the whole world of this instance.
func (p *Plumber) look(ctx context.Context) (world, error) {
	w, err := p.kernel.shared(ctx)
	if err != nil {
		return world{}, err
	}
	ids, err := p.kernel.ids(ctx)
	if err != nil {
		return world{}, err
	}
	w = w.clone()
	for id := range w.cells {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		c, err := p.kernel.cell(ctx, id)
		if err != nil {
			return world{}, err
		}
		c.elements = w.cells[id].elements
		w.cells[id] = c
	}
	return w, nil
}

// run applies steps in order and adds those that were done to done, if given.
func (p *Plumber) run(ctx context.Context, steps []step, done *[]step) error {
	for _, s := range steps {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		start := time.Now()
		err := p.kernel.apply(ctx, s)
		p.log.DebugContext(ctx, "network step", "step", s.String(), "took", time.Since(start), "error", err)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if done != nil {
			*done = append(*done, s)
		}
	}
	return nil
}

// undo takes back what was done, last first, also when ctx has ended.
func (p *Plumber) undo(ctx context.Context, done []step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var errs []error
	for _, s := range slices.Backward(done) {
		if inv, ok := s.inverse(); ok {
			errs = append(errs, p.run(ctx, []step{inv}, nil))
		}
	}
	return errors.Join(errs...)
}
