package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestID(t *testing.T) {
	seen := map[int]string{}
	for _, s := range []string{"10.213.128.1", "10.213.128.2", "10.213.129.1", "10.213.255.255"} {
		id, err := ID(netip.MustParseAddr(s))
		if err != nil || id < firstID || id > firstID+0xffff {
			t.Errorf("id of %s: %d, %v", s, id, err)
		}
		if other := seen[id]; other != "" {
			t.Errorf("%s and %s are both %d", s, other, id)
		}
		seen[id] = s
	}
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("::1")} {
		if id, err := ID(a); err == nil {
			t.Errorf("id of %v: %d", a, id)
		}
	}
}

// A process that was moved into a group is held to its limits, and the group can
// be removed once it has ended.
func TestGroup(t *testing.T) {
	testlane.Need(t, testlane.Root)
	name := "/sietch-test-" + strconv.Itoa(os.Getpid()) + "/one"
	g, err := MakeGroup(name, Limits{CPUs: 2, MemoryBytes: 64 << 20})
	if errors.Is(err, ErrDenied) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Dirs) == 0 {
		t.Fatal("no directory to move a process into")
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	limits := map[string]string{
		"memory.limit_in_bytes": strconv.Itoa(576 << 20), "cpu.cfs_quota_us": "250000", "pids.max": "256",
		"memory.max": strconv.Itoa(576 << 20), "cpu.max": "250000 100000",
	}
	found := 0
	for _, d := range g.Dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Error(err)
		}
		for file, want := range limits {
			got, err := os.ReadFile(filepath.Join(d, file))
			if err != nil {
				continue
			}
			if found++; strings.TrimSpace(string(got)) != want {
				t.Errorf("%s of %s is %q, want %s", file, d, got, want)
			}
		}
	}
	if want := 3 - len(g.Unlimited); found != want {
		t.Errorf("%d limits are set, want %d", found, want)
	}
	if err := RemoveGroup(name); err == nil {
		t.Error("a group with a process in it was removed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for range 2 { // the second time there is nothing to do
		if err := RemoveGroup(name); err != nil {
			t.Error(err)
		}
	}
	for _, r := range roots() {
		if _, err := os.Stat(filepath.Join(r, filepath.Dir(name))); err == nil {
			t.Errorf("the level above is left in %s", r)
		}
	}
}

// TestGroupInContainer: where the root of all groups one sees is one with
// processes, as in a container that was given its part of cgroup v2, no group has
// limits, and that is told apart from what goes wrong.
func TestGroupInContainer(t *testing.T) {
	testlane.Need(t, testlane.Root)
	if cgroups.Mode() != cgroups.Unified {
		t.Skip("the host has control groups of v1")
	}
	dir := filepath.Join(unifiedMount, "sietch-test-"+strconv.Itoa(os.Getpid()))
	// Limits of its own, so that controllers reach the group.
	if _, err := MakeGroup("/"+filepath.Base(dir), Limits{CPUs: 1, MemoryBytes: 64 << 20}); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := RemoveGroup("/" + filepath.Base(dir)); err != nil {
			t.Error(err)
		}
	}()
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	cmd := exec.Command("/proc/self/exe", container)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS, UseCgroupFD: true, CgroupFD: int(group.Fd())}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); got != "denied" {
		t.Errorf("group in a container: %s", got)
	}
}

// container is the argument of a process that makes a group from within one.
const container = "make-group-in-container"

func init() {
	if len(os.Args) != 2 || os.Args[1] != container {
		return
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Unmount(unifiedMount, unix.MNT_DETACH) // nothing is mounted twice in one place
	}
	if err == nil {
		err = unix.Mount("cgroup2", unifiedMount, "cgroup2", 0, "")
	}
	if err == nil {
		_, err = MakeGroup("/sietch/test/one", Limits{CPUs: 1, MemoryBytes: 64 << 20})
	}
	left, _ := os.Stat(unifiedMount + "/sietch")
	switch {
	case left != nil:
		fmt.Print("something is left")
	case errors.Is(err, ErrDenied):
		fmt.Print("denied")
	default:
		fmt.Print(err)
	}
	os.Exit(0)
}
