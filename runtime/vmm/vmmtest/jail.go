package vmmtest

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

// JailSuite is a driver whose jail is under test.
type JailSuite struct {
	Suite
	// Status has fields of /proc/PID/status that the driver's jail decides, beside
	// those that are the same for all; "≥ n" is a number that may be larger.
	Status map[string]string
	// Workers has more of them, of all threads but the first.
	Workers map[string]string
	// Sees reports whether a VMM may see a file in its root directory; nil is none.
	Sees func(s vmm.Spec, path string) bool
	// Check looks at what else is particular to the driver; nil is nothing.
	Check func(t testing.TB, m vmm.Machine, s vmm.Spec)
	// ListenTCP has the VMM listen on a TCP port itself; nil where it cannot be
	// made to.
	ListenTCP func(t testing.TB, m vmm.Machine) error
}

// JailUser is who the VMMs of RunJail are.
var JailUser = vmm.Jail{UID: 64999, GID: 64998}

// RunJail runs a machine as a nobody, in a network namespace and control groups,
// with files only root may read, and takes and restores it there. It needs root.
func RunJail(t *testing.T, j JailSuite) {
	b := &bench{suite: j.Suite, outer: t, oracle: counter.NewOracle(j.CounterBytes)}
	spec := b.spec(t)
	spec.CPUs = 2
	dir := t.TempDir()
	for _, path := range []*string{&spec.MemoryFile, &spec.Disks[1].Path} {
		renamed := filepath.Join(dir, filepath.Base(*path)+", with comma")
		if err := os.Rename(*path, renamed); err != nil {
			t.Fatal(err)
		}
		*path = renamed
	}
	spec.NIC = &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"}
	spec.NetNS = Namespace(t, "tap0")
	user := JailUser
	spec.Jail = &user
	spec.Jail.Cgroups = controlGroups(t)
	if err := os.WriteFile(spec.ConsoleLog, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := j.New(t)
	m := b.launch(t, d, spec)
	m.advance(2)
	j.check(t, m.Machine, spec)
	if data, err := os.ReadFile(spec.ConsoleLog); err != nil || !strings.HasPrefix(string(data), "earlier\n") {
		t.Errorf("console log was not appended to: %.40q, %v", data, err)
	}

	// Tracking works on a process without privileges.
	tracker, err := m.memory().Track(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	t.Logf("tracker: %s", tracker.Name())
	m.advance(1)
	m.mustPause()
	pages, err := tracker.Collect(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if pages.Bytes() == 0 {
		t.Error("a page was written and the tracker did not notice")
	}
	saved := m.save()
	m.must("kill", m.Kill())

	restored := saved.restored(t)
	restored.Kernel, restored.Initramfs = "", ""
	again := b.launch(t, d, restored)
	again.mustResume()
	saved.continues(again)
	j.check(t, again.Machine, restored)
	again.mustPause()
	again.must("save devices", again.SaveDevices(ctx(t), t.TempDir()))
	again.must("kill", again.Kill())

	j.launchFails(t, d, saved.restored(t))
}

// launchFails: errors name what is missing, and leave nothing.
func (j JailSuite) launchFails(t *testing.T, d vmm.Driver, s vmm.Spec) {
	without := s
	without.Jail = &vmm.Jail{UID: JailUser.UID, GID: JailUser.GID, Cgroups: []string{"/nonexistent"}}
	if _, err := d.Launch(ctx(t), without); err == nil || !strings.Contains(err.Error(), "control group") {
		t.Errorf("launch in a control group that is not there: got %v", err)
	}
	if left := processesOf(t, s.RunDir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	s.RunDir = runDir(t)
	s.NIC = &vmm.NIC{ID: "net0", Tap: "tap9", MAC: s.NIC.MAC}
	if _, err := d.Launch(ctx(t), s); err == nil || !strings.Contains(err.Error(), "tap9") {
		t.Errorf("launch with a tap that is not there: got %v", err)
	}
	err := process.InNetNS(s.NetNS, func() error {
		if _, err := net.InterfaceByName("tap9"); err == nil {
			return fmt.Errorf("the missing tap was made")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), s.RunDir) {
		t.Errorf("a jail is mounted here: %s (%v)", mounts, err)
	}
}

// meets reports whether a field of a status is as wanted.
func meets(got, want string) bool {
	least, bound := strings.CutPrefix(want, "≥ ")
	if !bound {
		return got == want
	}
	n, err := strconv.Atoi(got)
	m, merr := strconv.Atoi(least)
	return err == nil && merr == nil && n >= m
}

// check looks at the process itself.
func (j JailSuite) check(t *testing.T, m vmm.Machine, s vmm.Spec) {
	t.Helper()
	j.CheckProcess(t, m, s)
	if j.ListenTCP == nil {
		return
	}
	switch err := j.ListenTCP(t, m); {
	case process.Landlock() < 4:
		t.Logf("this kernel's Landlock, version %d, does not restrict TCP: got %v", process.Landlock(), err)
	case err == nil || !strings.Contains(strings.ToLower(err.Error()), "permission denied"):
		t.Errorf("listening on TCP: got %v, want that it is denied", err)
	}
}

// CheckProcess looks at the process of a machine in a jail.
func (j JailSuite) CheckProcess(t testing.TB, m vmm.Machine, s vmm.Spec) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", m.Handle().PID)
	tasks, err := filepath.Glob(proc + "task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads are found (%v)", err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that ended
		}
		want := map[string]string{
			"Uid":    strings.TrimSpace(strings.Repeat(strconv.Itoa(s.Jail.UID)+" ", 4)),
			"Gid":    strings.TrimSpace(strings.Repeat(strconv.Itoa(s.Jail.GID)+" ", 4)),
			"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		}
		maps.Copy(want, j.Status)
		if filepath.Base(filepath.Dir(task)) != strconv.Itoa(m.Handle().PID) {
			maps.Copy(want, j.Workers)
		}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(line, ":")
			if w, ok := want[name]; ok {
				if got := strings.Join(strings.Fields(value), " "); !meets(got, w) {
					t.Errorf("%s is %q, want %q", name, got, w)
				}
				delete(want, name)
			}
		}
		if len(want) > 0 {
			t.Errorf("status does not tell %v", want)
		}
	}
	root := proc + "root"
	err = filepath.WalkDir(root+"/", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && path == root+"/" {
			return err
		}
		inside := strings.TrimPrefix(path, root)
		may := j.Sees != nil && j.Sees(s, inside)
		switch {
		case e.IsDir() && may:
			return filepath.SkipDir // it and all beneath it
		case !e.IsDir() && !may:
			t.Errorf("sees %s", inside)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if len(s.Jail.Cgroups) > 0 {
		data, err := os.ReadFile(proc + "cgroup")
		if n := strings.Count(string(data), "/"+filepath.Base(s.Jail.Cgroups[0])+"\n"); err != nil || n < len(s.Jail.Cgroups) {
			t.Errorf("control groups are %q (%v), want %q", data, err, s.Jail.Cgroups)
		}
	}
	if data, err := os.ReadFile(proc + "limits"); err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 `).Match(data) {
		t.Errorf("may leave a core: %s (%v)", data, err)
	}
	if s.NetNS != "" {
		var here, there unix.Stat_t
		if err := unix.Stat(s.NetNS, &here); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(proc+"ns/net", &there); err != nil || here.Ino != there.Ino {
			t.Errorf("network namespace is another (%v)", err)
		}
	}
	if j.Check != nil {
		j.Check(t, m, s)
	}
}

// controlGroups makes control groups of whatever kind the host has.
func controlGroups(t testing.TB) (made []string) {
	name := "sietch-test-" + strconv.Itoa(os.Getpid())
	for _, parent := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"} {
		if _, err := os.Stat(parent + "/cgroup.procs"); err != nil {
			continue
		}
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Logf("no control group is made: %v", err)
			continue
		}
		made = append(made, dir)
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	}
	t.Logf("control groups: %q", made)
	return made
}
