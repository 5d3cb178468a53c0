package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// host is an engine whose machines are processes that count in memory, whose
// networks are notes, and whose guests are agents in this process.
type host struct {
	*Local
	vmms *vmmtest.Fake
	net  *fakeNet
}

func newHost(t *testing.T) *host {
	t.Helper()
	testlane.Need(t, testlane.Root)
	dir := t.TempDir()
	e, err := Open(t.Context(), Options{DataDir: filepath.Join(dir, "data"), LockWait: 5 * time.Second, BootTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Local: e, vmms: &vmmtest.Fake{}, net: &fakeNet{up: map[string]netplumb.Network{}}}
	e.monitors.only, e.net = h.vmms, h.net
	kernel := filepath.Join(dir, "kernel")
	if err := os.WriteFile(kernel, []byte("kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.parts = func(context.Context, *record, bool) (builder.Image, guestboot.Guest, error) {
		return builder.Image{RootfsPath: kernel}, guestboot.Guest{Kernel: kernel, Initramfs: kernel}, nil
	}
	h.net.agents(t)
	t.Cleanup(func() {
		list, _ := e.records()
		for _, r := range list {
			if err := e.Remove(context.Background(), r.Name, true); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		e.Close()
		os.RemoveAll(e.runs())
	})
	return h
}

// boot makes a running sandbox.
func (h *host) boot(t *testing.T, name string) *record {
	t.Helper()
	r := &record{Name: name, Machine: machine{Version: machineVersion, CPUs: 1, MemoryBytes: 128 << 20, DiskBytes: 32 << 20, NetworkMode: NetworkNAT},
		Network: network{Mode: NetworkNAT}}
	if err := h.makeRoom(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.bootNew(t.Context(), r); err != nil {
		t.Fatalf("boot %s: %v", name, err)
	}
	return r
}

func (h *host) mustCommit(t *testing.T, name, message string) Commit {
	t.Helper()
	c, err := h.Commit(t.Context(), CommitRequest{Name: name, Message: message})
	if err != nil {
		t.Fatalf("commit %s: %v", name, err)
	}
	return c
}

// leftovers lists what is there of sandboxes beside those named.
func (h *host) leftovers(t *testing.T, names ...string) []string {
	t.Helper()
	var left []string
	ids := map[string]bool{}
	for _, n := range names {
		r, err := h.find(n)
		if err != nil {
			t.Fatal(err)
		}
		ids[r.ID] = true
	}
	look := func(dir string, known func(string) bool) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, de := range entries {
			if !known(de.Name()) {
				left = append(left, filepath.Join(filepath.Base(dir), de.Name()))
			}
		}
	}
	look(h.sandboxes(), func(n string) bool { return ids[n] || n == ".lock" })
	look(h.tmp(), func(n string) bool { return n == "builder-lock" })
	look(h.runs(), func(n string) bool { return ids[n[:min(10, len(n))]] })
	h.net.mu.Lock()
	for id := range h.net.up {
		if !ids[id] {
			left = append(left, "network "+id)
		}
	}
	h.net.mu.Unlock()
	err := h.withStore(t.Context(), func(s *branches.Store) error {
		heads, err := s.Heads(t.Context())
		for id := range heads {
			if !ids[id] {
				left = append(left, "head "+id)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(left)
	return left
}

// fakeNet notes what is up; every guest is one agent on loopback.
type fakeNet struct {
	mu     sync.Mutex
	up     map[string]netplumb.Network
	addr   string
	fail   func(id string) error
	idents []proto.Identity
}

func (n *fakeNet) agents(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = ln.Addr().String()
	s := agent.New(agent.Options{Identify: func(_ context.Context, id proto.Identity) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.idents = append(n.idents, id)
		return nil
	}})
	go s.Serve(ln)
	t.Cleanup(func() { s.Close() })
}

func (n *fakeNet) FreeAddr(taken []netip.Addr) (netip.Addr, error) {
	for a := netip.MustParseAddr("10.0.0.1"); ; a = a.Next() {
		if !slices.Contains(taken, a) {
			return a, nil
		}
	}
}

func (n *fakeNet) Up(_ context.Context, nw netplumb.Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		if err := n.fail(nw.ID); err != nil {
			return err
		}
	}
	n.up[nw.ID] = nw
	return nil
}

func (n *fakeNet) Down(_ context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.up, id)
	return nil
}

func (n *fakeNet) Sweep(_ context.Context, keep []netplumb.Network) (removed []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.up {
		if !slices.ContainsFunc(keep, func(k netplumb.Network) bool { return k.ID == id }) {
			removed = append(removed, id)
			delete(n.up, id)
		}
	}
	return removed, nil
}

func (n *fakeNet) Cut(context.Context, string) error { return nil }

func (n *fakeNet) NamespacePath(string) string { return "" }

func (n *fakeNet) Dial(ctx context.Context, id, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	_, ok := n.up[id]
	n.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("no network %s: %w", id, netplumb.ErrNotFound)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", n.addr)
}

func (n *fakeNet) Notes(context.Context) ([]netplumb.Note, error) { return nil, nil }
func (n *fakeNet) Close() error                                   { return nil }
