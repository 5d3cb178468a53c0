package netplumb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Sixteen commands at once, each with a Plumber of its own as separate
// processes would have: all come up, all work, all go.
func TestParallel(t *testing.T) {
	p := newReal(t, "b00001")
	const n = 16
	plumbers := make([]*Plumber, n)
	for i := range plumbers {
		var err error
		if plumbers[i], err = New(testOptions("b00001")); err != nil {
			t.Fatal(err)
		}
	}
	nets := make([]Network, n)
	start := time.Now()
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			a, err := plumbers[i].FreeAddr(nil)
			if err != nil {
				return err
			}
			nets[i] = Network{ID: fmt.Sprintf("parallel%02d", i), Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}, Ports: []Port{{Host: uint16(9000 + i), Guest: 7, Protocol: TCP}}}
			return plumbers[i].Up(t.Context(), nets[i])
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d networks up in %s", n, time.Since(start))
	for i := range n {
		guest := attach(t, p, nets[i].ID)
		guest.listen(t, "0.0.0.0:7")
		if got := guest.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
			t.Errorf("%s: out: %s", nets[i].ID, got)
		}
		if got := tcpHere(fmt.Sprintf("127.0.0.1:%d", 9000+i)); got == refused || got == silent {
			t.Errorf("%s: in: %s", nets[i].ID, got)
		}
		guest.detach()
	}
	start = time.Now()
	for i := range n {
		g.Go(func() error { return plumbers[i].Down(t.Context(), nets[i].ID) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d networks down in %s", n, time.Since(start))
	if got := worldText(t, p); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// The first and the last network of an instance make and remove what all
// share. Racing them must never leave one without it.
func TestParallelFirstAndLast(t *testing.T) {
	p := newReal(t, "b00001")
	var g errgroup.Group
	for i := range 4 {
		g.Go(func() error {
			q, err := New(testOptions("b00001"))
			if err != nil {
				return err
			}
			id := fmt.Sprintf("racer%05d", i)
			for range 10 {
				a, err := q.FreeAddr(nil)
				if err != nil {
					return err
				}
				err = q.Up(t.Context(), Network{ID: id, Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}})
				if errors.Is(err, ErrAddr) {
					continue // somebody chose another block or the same address
				}
				if err != nil {
					return err
				}
				w, err := q.kernel.shared(t.Context())
				if err != nil {
					return err
				}
				if !w.bridge.ready || w.tables != q.hostFingerprint || !w.cells[id].natted() {
					return fmt.Errorf("%s is up in\n%s", id, w)
				}
				if err := q.Down(t.Context(), id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := worldText(t, p); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// Two hundred machines come and go in a pool that has room for thirteen.
func TestCyclesLeakNothing(t *testing.T) {
	needScratch(t)
	o := testOptions("b00001")
	o.Pool = netip.MustParsePrefix("10.214.0.0/28")
	newReal(t, "b00001") // for the comparison of the host
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	used := map[netip.Addr]bool{}
	fds := openFiles(t)
	for i := range 200 {
		switch i { // at first alone each time, then beside another
		case 10:
			up(t, p, "keeps00000")
		case 190:
			if err := p.Down(t.Context(), "keeps00000"); err != nil {
				t.Fatal(err)
			}
		}
		a, err := p.FreeAddr(nil)
		if err != nil {
			t.Fatal(err)
		}
		used[a] = true
		n := Network{ID: fmt.Sprintf("cycle%05d", i), Mode: NAT, Addr: a, Upstream: []netip.Addr{dnsAddr}, Ports: []Port{{Host: 9000, Guest: 7, Protocol: TCP}, {Host: 9000, Guest: 7, Protocol: UDP}}}
		if err := p.Up(t.Context(), n); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		if err := p.Down(t.Context(), n.ID); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
	}
	if len(used) > 13 {
		t.Errorf("%d addresses from a pool of 13", len(used))
	}
	if now := openFiles(t); now > fds+2 { // the poller's own come once
		t.Errorf("%d open files before, %d after", fds, now)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fs, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fs)
}

func TestAddressesRunOut(t *testing.T) {
	o := testOptions(tableInstance)
	o.kernel = newFake()
	o.Pool = netip.MustParsePrefix("10.214.0.0/28")
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var taken []netip.Addr
	for range 13 {
		a, err := p.FreeAddr(taken)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, a)
	}
	if a, err := p.FreeAddr(taken); !errors.Is(err, ErrExhausted) {
		t.Errorf("14th address: got %s, %v", a, err)
	}
}

// The process keeps all its threads where they were.
func TestEnterLeavesThreads(t *testing.T) {
	p := newReal(t, "b00001")
	n := up(t, p, "aaaaaaaaaa")
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	inside := ""
	if err := p.Enter(n.ID, func() (err error) { inside, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
		t.Fatal(err)
	}
	if inside == home || inside == "" {
		t.Errorf("inside is %s, home %s", inside, home)
	}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			p.Enter(n.ID, func() error { time.Sleep(time.Millisecond); return nil })
		})
	}
	wg.Wait()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, f := range tasks {
		if ns, err := os.Readlink(f); err == nil && ns != home {
			t.Errorf("%s is in %s, want %s", f, ns, home)
		}
	}

	want := errors.New("of the function")
	if err := p.Enter(n.ID, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if err := p.Enter(n.ID, func() error { goruntime.Goexit(); return nil }); err == nil {
		t.Error("a function that ended its goroutine returned no error")
	}
	if err := p.Enter("zzzzzzzzzz", func() error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("no sandbox: got %v", err)
	}
	// A process started inside lives there.
	var out []byte
	if err := p.Enter(n.ID, func() (err error) { out, err = exec.Command("readlink", "/proc/self/ns/net").Output(); return err }); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != inside {
		t.Errorf("child is in %s, want %s", got, inside)
	}
}

// A process that stays in the namespace cannot keep a removed sandbox's
// interfaces, and is not in the way of its successor.
func TestDownOfUsedNamespace(t *testing.T) {
	p := newReal(t, "b00001")
	n := up(t, p, "aaaaaaaaaa")
	f, err := os.Open(p.NamespacePath(n.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.Down(t.Context(), n.ID); err != nil {
		t.Fatal(err)
	}
	if got := worldText(t, p); got != "" {
		t.Errorf("left over:\n%s", got)
	}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	g := attach(t, p, n.ID)
	if got := g.tcp(addrPort(webAddr, 80)); got != hostAddr.String() {
		t.Errorf("successor: %s", got)
	}
}

// Up finishes or undoes what it began also when its caller gives up.
func TestUpCancelled(t *testing.T) {
	p := newReal(t, "b00001")
	n := up(t, p, "keeps00000")
	before := worldText(t, p)
	for _, after := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 4 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		m := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: n.Addr.Next(), Upstream: []netip.Addr{dnsAddr}}
		if _, err := p.blockOf(m.Addr); err != nil {
			m.Addr = n.Addr.Prev()
		}
		err := p.Up(ctx, m)
		cancel()
		if err == nil {
			if err := p.Down(t.Context(), m.ID); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: got %v", after, err)
		}
		if got := worldText(t, p); got != before {
			t.Fatalf("after %s: left over:\n%s", after, got)
		}
	}
}

// A lock that another process holds is waited for, and given up on.
func TestLockOfAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	a, b := newHostLock(path), newHostLock(path)
	release, err := a.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := b.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := b.acquire(t.Context())
		if err == nil {
			r()
		}
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// The kernel's limit on bridge ports is an error that says so.
func TestBridgeIsFull(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a thousand interfaces")
	}
	p := newReal(t, "b00001")
	n := up(t, p, "keeps00000")
	fillBridge(t, p.names.bridge())
	before := worldText(t, p)
	m := Network{ID: "aaaaaaaaaa", Mode: NAT, Addr: n.Addr.Next(), Upstream: []netip.Addr{dnsAddr}}
	if err := p.Up(t.Context(), m); !errors.Is(err, ErrExhausted) {
		t.Errorf("got %v, want %v", err, ErrExhausted)
	}
	// Nor does a namespace that was there before keep half a veth.
	none := Network{ID: m.ID, Mode: None}
	if err := p.Up(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	if err := p.Up(t.Context(), m); !errors.Is(err, ErrExhausted) {
		t.Errorf("from none: got %v, want %v", err, ErrExhausted)
	}
	if there, err := linkExists(p.names.veth(m.ID)); there || err != nil {
		t.Errorf("half a veth: %t, %v", there, err)
	}
	if err := p.Down(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if got := worldText(t, p); got != before {
		t.Errorf("left over:\n%s", got)
	}
}

func TestClosed(t *testing.T) {
	o := testOptions(tableInstance)
	o.kernel = newFake()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := p.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	_, sweepErr := p.Sweep(t.Context(), nil)
	_, stateErr := p.State(t.Context())
	_, addrErr := p.FreeAddr(nil)
	for name, err := range map[string]error{
		"up": p.Up(t.Context(), natA), "down": p.Down(t.Context(), natA.ID), "enter": p.Enter(natA.ID, func() error { return nil }),
		"cut": p.Cut(t.Context(), natA.ID), "sweep": sweepErr, "state": stateErr, "free address": addrErr,
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrClosed)
		}
	}
}

// The namespaces speak no IPv6 at all.
func TestNoIPv6Inside(t *testing.T) {
	p := newReal(t, "b00001")
	n := up(t, p, "aaaaaaaaaa")
	if err := p.Enter(n.ID, func() error {
		for _, i := range []string{"all", "default", uplinkName, p.opts.TapName} {
			v, err := readSysctl(ifaceSysctl("ipv6/disable_ipv6", i))
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			if err == nil && v != "1" {
				return fmt.Errorf("IPv6 is on on %s", i)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Other tools that keep namespaces in the same place do not get in the way,
// whether they come before or in between.
func TestBesideIPNetns(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	p := newReal(t, "b00001")
	ip := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	n := up(t, p, "aaaaaaaaaa")
	ip("netns", "add", "stranger")
	if out := ip("netns", "exec", p.names.netns(n.ID), "ip", "-o", "link"); !strings.Contains(out, p.opts.TapName) {
		t.Errorf("ip netns exec sees %s", out)
	}
	m := up(t, p, "bbbbbbbbbb")
	for _, id := range []string{n.ID, m.ID} {
		if err := p.Down(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if out := ip("netns", "list"); !strings.HasPrefix(out, "stranger") {
		t.Errorf("the other namespace is gone: %q", out)
	}
	ip("netns", "delete", "stranger")
}

// What nft prints of our tables, nft reads: hosts save their rules that way.
func TestRulesCanBeSaved(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	p := newReal(t, "b00001")
	n := up(t, p, "aaaaaaaaaa", Port{Host: 8080, Guest: 80, Protocol: TCP}, Port{HostIP: hostAddr, Host: 8081, Guest: 80, Protocol: UDP})
	check := func() error {
		list, err := exec.Command("nft", "list", "ruleset").Output()
		if err != nil {
			return err
		}
		cmd := exec.Command("nft", "-c", "-f", "-")
		cmd.Stdin = strings.NewReader("flush ruleset\n" + string(list))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := check(); err != nil {
		t.Errorf("host: %v", err)
	}
	if err := p.Enter(n.ID, check); err != nil {
		t.Errorf("inside: %v", err)
	}
}

// The tap's owner may attach to it without any privilege, and nobody else.
func TestTapOwner(t *testing.T) {
	p := newReal(t, "b00001")
	n := Network{ID: "aaaaaaaaaa", Mode: None, TapOwner: 12345}
	try := func(uid uint32) string {
		t.Helper()
		var out []byte
		if err := p.Enter(n.ID, func() (err error) {
			dev, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0) // may be root's alone
			if err != nil {
				return err
			}
			defer dev.Close()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{tapEnv + "=" + p.opts.TapName}
			cmd.ExtraFiles = []*os.File{dev}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			out, err = cmd.CombinedOutput()
			return err
		}); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := try(12345); got != "attached" {
		t.Errorf("owner: %s", got)
	}
	if got := try(12346); got != unix.EPERM.Error() {
		t.Errorf("somebody else: %s", got)
	}
	n.TapOwner = 12346
	if err := p.Up(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := try(12346); got != "attached" {
		t.Errorf("new owner: %s", got)
	}
	if got := try(12345); got != unix.EPERM.Error() {
		t.Errorf("old owner: %s", got)
	}
}
