package netplumb

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// fake is a kernel made of maps. It refuses what the real one would refuse, so
// that a plan in the wrong order fails here too.
type fake struct {
	mu        sync.Mutex
	w         world
	forwards  bool            // ip_forward
	uplinks   map[string]bool // interfaces with routes, and whether they forward
	routes    []netip.Prefix
	listeners map[Port]string
}

var _ kernel = (*fake)(nil)

func newFake() *fake {
	return &fake{
		w:         world{cells: map[string]cell{}},
		uplinks:   map[string]bool{"eth0": false},
		routes:    []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		listeners: map[Port]string{},
	}
}

func (f *fake) shared(context.Context) (world, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.w.clone()
	w.cells = map[string]cell{}
	for id, c := range f.w.cells {
		if len(c.elements) > 0 {
			w.cells[id] = cell{elements: slices.Clone(c.elements)}
		}
	}
	if !f.forwards {
		for u, on := range f.uplinks {
			if !on || slices.Contains(union(f.w.uplinks, f.w.recorded), u) {
				w.needed = append(w.needed, u)
			}
		}
		slices.Sort(w.needed)
	}
	return w, nil
}

func (f *fake) tables(ctx context.Context) (world, error) {
	w, err := f.shared(ctx)
	w.bridge, w.needed = bridge{}, nil
	return w, err
}

func (f *fake) close()                     {}
func (f *fake) tidy(context.Context) error { return nil }

func (f *fake) cell(_ context.Context, id string) (cell, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.w.cells[id]
	c.elements = nil
	return c, nil
}

func (f *fake) ids(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, c := range f.w.cells {
		if c.ns != nsNone || c.veth {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (f *fake) occupied(context.Context) ([]netip.Prefix, error) { return f.routes, nil }

func (f *fake) taken(_ context.Context, p Port) (string, error) {
	for q, who := range f.listeners {
		if p.overlaps(q) {
			return who, nil
		}
	}
	return "", nil
}

func (f *fake) enter(id string, fn func() error) error {
	f.mu.Lock()
	c := f.w.cells[id]
	f.mu.Unlock()
	if c.ns != nsThere {
		return ErrNotFound
	}
	return fn()
}

func (f *fake) forget(context.Context, string) error  { return nil }
func (f *fake) notes(context.Context) ([]Note, error) { return nil, nil }

func (f *fake) apply(_ context.Context, s step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.w.cells[s.id]
	defer func() {
		if s.id == "" {
			return
		}
		f.w.cells[s.id] = c
		if c.ns == nsNone && !c.veth && len(c.elements) == 0 {
			delete(f.w.cells, s.id)
		}
	}()
	need := func(ok bool, what string) error {
		if !ok {
			return errors.New("no " + what)
		}
		return nil
	}
	switch s.verb {
	case makeTables:
		n, err := newNames("000000")
		if err != nil {
			return err
		}
		f.w.tables = hostRules(n).fingerprint()
		f.w.uplinks = slices.Clone(s.uplinks)
		for id, c := range f.w.cells {
			c.elements = nil
			f.w.cells[id] = c
		}
	case dropTables:
		f.w.tables, f.w.uplinks = "", nil
		for id, c := range f.w.cells {
			c.elements = nil
			f.w.cells[id] = c
		}
		maps.DeleteFunc(f.w.cells, func(_ string, c cell) bool { return c.ns == nsNone && !c.veth })
	case makeBridge:
		f.w.bridge = bridge{exists: true, ready: true, prefix: s.prefix}
	case dropBridge:
		f.w.bridge = bridge{}
	case holdForwarding:
		if err := need(f.w.tables != "", "tables"); err != nil {
			return err
		}
		f.w.uplinks = append(f.w.uplinks, s.iface)
		f.w.recorded = union(f.w.recorded, []string{s.iface})
		f.uplinks[s.iface] = true
	case dropForwarding:
		f.w.uplinks = missing(f.w.uplinks, []string{s.iface})
		f.w.recorded = missing(f.w.recorded, []string{s.iface})
		f.uplinks[s.iface] = f.forwards
	case changeElements:
		if err := need(f.w.tables != "", "tables"); err != nil {
			return err
		}
		c.elements = append(missing(c.elements, s.del), s.add...)
		slices.SortFunc(c.elements, compareElements)
	case makeNamespace:
		if c.ns != nsNone {
			return errors.New("file exists")
		}
		c.ns = nsThere
	case dropNamespace:
		c = cell{elements: c.elements}
	case makeTap:
		if err := need(c.ns == nsThere, "namespace"); err != nil {
			return err
		}
		c.tap, c.tapOwner = true, s.net.TapOwner
	case makeRules:
		if err := need(c.ns == nsThere, "namespace"); err != nil {
			return err
		}
		c.rules = s.rules.fingerprint()
	case makeVeth:
		if err := need(c.ns == nsThere && f.w.bridge.ready, "namespace or bridge"); err != nil {
			return err
		}
		if c.veth {
			return errors.New("veth exists")
		}
		c.veth, c.link = true, s.net.Addr
	case dropVeth:
		c.veth, c.link = false, netip.Addr{}
	}
	return nil
}

// breaking fails at the nth step. With crash it does nothing from then on, as
// if the process had been killed there.
type breaking struct {
	kernel
	left  int
	crash bool
}

var errBroken = errors.New("broken on purpose")

func (b *breaking) apply(ctx context.Context, s step) error {
	b.left--
	if b.left == 0 || b.crash && b.left < 0 {
		return errBroken
	}
	return b.kernel.apply(ctx, s)
}
