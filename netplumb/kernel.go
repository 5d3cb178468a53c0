package netplumb

import (
	"context"
	"net/netip"
)

// kernel is the part of the operating system that a Plumber works on. Looking
// never changes anything; apply makes one change. Methods are safe for
// concurrent use.
type kernel interface {
	// tables is the part of shared that takes no lock of the kernel's: without
	// bridge and needed.
	tables(ctx context.Context) (world, error)
	// shared returns bridge, tables and forwarding, and of the cells the
	// elements that the host's tables hold for them.
	shared(ctx context.Context) (world, error)
	// cell returns one sandbox's own part, without its elements.
	cell(ctx context.Context, id string) (cell, error)
	// ids lists the sandboxes that have a namespace file or a veth.
	ids(ctx context.Context) ([]string, error)
	// occupied lists what the host's addresses and routes cover, leaving out
	// the default route and this instance's own bridge.
	occupied(ctx context.Context) ([]netip.Prefix, error)
	// taken says who outside this instance has a host port, "" for nobody.
	taken(ctx context.Context, p Port) (string, error)
	// apply makes one change. It is atomic as far as the kernel lets it be.
	apply(ctx context.Context, s step) error
	// tidy removes what namespaces of all instances have in common, if none is
	// left. The host lock is not held.
	tidy(ctx context.Context) error
	// enter runs fn on a thread inside a sandbox's namespace.
	enter(id string, fn func() error) error
	// forget drops the connections that a sandbox's namespace tracks.
	forget(ctx context.Context, id string) error
	// notes lists what on the host may be in the way.
	notes(ctx context.Context) ([]Note, error)
	// close waits for what still goes on behind earlier calls.
	close()
}
