package netplumb

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// scratchEnv marks the process that runs in namespaces of its own.
const scratchEnv = "NETPLUMB_TEST_SCRATCH"

// tapEnv makes the process try to attach to a tap, see TestTapOwner.
const tapEnv = "NETPLUMB_TEST_TAP"

// tryTap attaches to a tap by an open descriptor of /dev/net/tun, as a process
// without privileges.
func tryTap(name string) {
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(3, unix.TUNSETIFF, req)
	}
	if err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("attached")
	}
}

// TestMain runs the tests in a fresh network and mount namespace where it may
// make one. The "host" of the tests is that namespace: the real host's network
// is never looked at or changed.
func TestMain(m *testing.M) {
	if tap := os.Getenv(tapEnv); tap != "" {
		tryTap(tap)
		os.Exit(0)
	}
	if os.Geteuid() == 0 && os.Getenv(scratchEnv) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), scratchEnv+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			Pdeathsig:    syscall.SIGKILL,
		}
		if err := cmd.Start(); err == nil {
			cmd.Wait()
			os.Exit(cmd.ProcessState.ExitCode())
		}
		// Root without the right to unshare: the tests that need it are skipped.
	}
	if os.Getenv(scratchEnv) != "" {
		if err := makeScratch(); err != nil {
			fmt.Fprintln(os.Stderr, "make scratch host:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func makeScratch() error {
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := makeInternet(); err != nil {
		return err
	}
	return makeNeighbours()
}

// makeNeighbours puts other programs' rules on the host, to be left alone.
func makeNeighbours() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		nt := c.AddTable(&nftables.Table{Family: f, Name: "neighbour"})
		ch := c.AddChain(&nftables.Chain{Table: nt, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept})
		c.AddRule(&nftables.Rule{Table: nt, Chain: ch, Exprs: from("docker0")})
		// As near to our names as a stranger can get.
		c.AddTable(&nftables.Table{Family: f, Name: "sietch"})
	}
	if err := c.Flush(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "docker0"
	return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
}

// needScratch skips tests that change a kernel unless it is the scratch one.
func needScratch(t testing.TB) {
	t.Helper()
	testlane.Need(t, testlane.Root)
	if os.Getenv(scratchEnv) == "" {
		t.Skip("root here may not make namespaces")
	}
}

func mustMAC(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

func testOptions(instance string) Options {
	o := Options{
		Instance:    instance,
		GuestAddr:   netip.MustParseAddr("169.254.77.2"),
		GatewayAddr: netip.MustParseAddr("169.254.77.1"),
		PrefixBits:  30,
		GuestMAC:    mustMAC("02:73:69:65:74:63"),
		GatewayMAC:  mustMAC("02:73:69:65:74:01"),
		TapName:     "tap0",
	}
	if testing.Verbose() && os.Getenv("NETPLUMB_TEST_STEPS") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return o
}

// newReal returns a Plumber on the scratch host. When the test ends its networks
// are removed and the host has to be what it was before, to the letter.
func newReal(t testing.TB, instance string) *Plumber {
	t.Helper()
	needScratch(t)
	if !watched[t.Name()] { // once, so that it comes after all instances of the test
		watched[t.Name()] = true
		before := hostText(t)
		t.Cleanup(func() {
			delete(watched, t.Name())
			if diff := cmp.Diff(before, hostText(t)); diff != "" {
				t.Errorf("host (-before +after):\n%s", diff)
			}
		})
	}
	p, err := New(testOptions(instance))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Sweep(context.Background(), nil); err != nil {
			t.Errorf("clean up: %v", err)
		}
		p.Close()
	})
	return p
}

var watched = map[string]bool{} // tests here do not run in parallel

// hostText is everything on the host that a network could have changed.
func hostText(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		v, _ := readSysctl(ifaceSysctl(forwarding, l.Attrs().Name))
		fmt.Fprintln(&b, "link", l.Attrs().Name, l.Type(), "forwarding", v)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		fmt.Fprintln(&b, "route", r)
	}
	v, err := readSysctl(ipForward)
	fmt.Fprintln(&b, "ip_forward", v, err)
	files, _ := os.ReadDir(netnsDir)
	for _, f := range files {
		fmt.Fprintln(&b, "namespace", f.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	// Only what is on top of our /run: the mounts of others end when they like.
	_, ours, _ := strings.Cut(string(mounts), "\ntmpfs /run tmpfs")
	b.WriteString(ours)
	if _, err := exec.LookPath("nft"); err == nil {
		out, err := exec.Command("nft", "-a", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
		b.Write(out)
	}
	return b.String()
}
