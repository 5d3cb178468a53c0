package jail

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

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
	if err != nil {
		t.Skipf("this host allows no control groups: %v", err)
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
	if found != 3 {
		t.Errorf("%d limits are set, want 3", found)
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
