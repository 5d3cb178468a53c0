package netplumb

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// scratchEnv marks the process that runs in namespaces of its own.
const scratchEnv = "NETPLUMB_TEST_SCRATCH"

// TestMain runs the tests in a fresh network and mount namespace where it may
// make one. The "host" of the tests is that namespace: the real host's network
// is never looked at or changed.
func TestMain(m *testing.M) {
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
	for _, dir := range []string{"/run"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return makeInternet()
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

// newReal returns a Plumber on the scratch host whose networks are gone, and
// seen to be gone, when the test ends.
func newReal(t testing.TB, instance string) *Plumber {
	t.Helper()
	needScratch(t)
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

// debugShell shows what tools say, when a test is being written.
func debugShell(cmd string) {
	out, _ := exec.Command("sh", "-c", cmd).CombinedOutput()
	fmt.Println("$", cmd+"\n"+string(out))
}
