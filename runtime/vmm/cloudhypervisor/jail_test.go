package cloudhypervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// TestJailOfFake and TestJail run a machine as a nobody, in a network namespace
// with files only root may read, and take and restore it there.
func TestJailOfFake(t *testing.T) {
	// Whoever launches may be private by default.
	defer unix.Umask(unix.Umask(0o077))
	testlane.Need(t, testlane.Root)
	testJail(t, New(Options{Binary: fakeBinary(t)}), fakeBoot(t))
}

func TestJail(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.CloudHypervisor, testlane.KVM)
	testJail(t, New(Options{Binary: realBinary()}), guest(t))
}

func testJail(t *testing.T, d *Driver, boot vmmtest.Boot) {
	ns := namespace(t, "tap0")
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	spec := vmm.Spec{
		ID: "jailed", RunDir: runDir(t), CPUs: 2, MemoryBytes: 128 << 20, MemoryFile: file("memory, with comma", 128<<20),
		Kernel: boot.Kernel, Initramfs: boot.Initramfs, Cmdline: boot.Cmdline,
		Disks: []vmm.Disk{
			{ID: "image", Path: file("image", 1<<20), ReadOnly: true},
			{ID: "layer", Path: file("layer, with comma", 1<<20)},
		},
		NIC:        &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:73:69:65:74:63"},
		ConsoleLog: filepath.Join(dir, "console.log"), MainLog: filepath.Join(dir, "main.log"),
		NetNS: ns,
		Jail:  &vmm.Jail{UID: 64999, GID: 64998},
	}
	spec.Jail.Cgroups = cgroups(t)
	if err := os.WriteFile(spec.ConsoleLog, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := d.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	waitTick(t, m, spec.ConsoleLog)
	checkJail(t, m, spec)
	if data, err := os.ReadFile(spec.ConsoleLog); err != nil || !strings.HasPrefix(string(data), "earlier\n") {
		t.Errorf("console log was not appended to: %.40q, %v", data, err)
	}

	// Tracking works on a process that never had privileges.
	mem, err := guestmem.Open(guestmem.Target{PID: m.Handle().PID, MemoryFile: spec.MemoryFile, SizeBytes: spec.MemoryBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	tracker, err := mem.Track(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tracker.Close()
	t.Logf("tracker: %s", tracker.Name())

	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.SaveDevices(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	dump := file("dump", 0)
	f, err := os.OpenFile(dump, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pages, err := tracker.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Copy(t.Context(), pages, f); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}

	spec.RunDir, spec.MemoryFile, spec.ConsoleLog = runDir(t), dump, filepath.Join(dir, "again.log")
	spec.Restore = &vmm.Restore{Dir: state, Saved: m.Identity()}
	spec.Kernel, spec.Initramfs = "", ""
	again, err := d.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Kill()
	if err := again.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitTick(t, again, spec.ConsoleLog)
	checkJail(t, again, spec)
	if err := again.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := again.SaveDevices(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}

	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	// A control group that is not there is an error, and leaves no process.
	spec.RunDir = runDir(t)
	spec.Jail = &vmm.Jail{UID: 64999, GID: 64998, Cgroups: []string{"/nonexistent"}}
	if _, err := d.Launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "control group") {
		t.Errorf("launch in a control group that is not there: got %v", err)
	}
	if left := processesOf(t, spec.RunDir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}

	// Errors name what is missing, and nothing of a jail is left here.
	spec.RunDir = runDir(t)
	spec.NIC = &vmm.NIC{ID: "net0", Tap: "tap9", MAC: "02:73:69:65:74:63"}
	if _, err := d.Launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "tap9") {
		t.Errorf("launch with a tap that is not there: got %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), "/root tmpfs") && strings.Contains(string(mounts), spec.RunDir) {
		t.Errorf("a jail is mounted here: %s (%v)", mounts, err)
	}
}

// cgroups makes control groups of whatever kind the host has.
func cgroups(t *testing.T) (made []string) {
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

// checkJail looks at the process itself.
func checkJail(t *testing.T, m vmm.Machine, s vmm.Spec) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", m.Handle().PID)
	tasks, err := filepath.Glob(proc + "task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that ended
		}
		want := map[string]string{
			"Uid": "64999 64999 64999 64999", "Gid": "64998 64998 64998 64998", "Groups": "",
			"CapInh": "0000000000000000", "CapEff": "0000000000000000", "CapPrm": "0000000000000000",
			"CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1",
		}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(line, ":")
			if w, ok := want[name]; ok {
				if got := strings.Join(strings.Fields(value), " "); got != w {
					t.Errorf("%s is %q, want %q", name, got, w)
				}
				delete(want, name)
			}
		}
		if len(want) > 0 {
			t.Errorf("status does not tell %v", want)
		}
	}
	// All it sees is its own.
	var seen []string
	root := proc + "root"
	err = filepath.WalkDir(root+"/", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, dir := range []string{"/usr/lib", "/usr/lib64", "/lib64"} {
			if path == root+dir && e.IsDir() {
				return filepath.SkipDir // of a program that is not static
			}
		}
		if !e.IsDir() {
			seen = append(seen, strings.TrimPrefix(path, root))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	allowed := []string{s.MemoryFile, s.Kernel, s.Initramfs, s.Disks[0].Path, s.Disks[1].Path, "/dev/kvm", "/dev/null", "/dev/urandom", "/lib", "/lib64", "/etc/ld.so.cache"}
	for _, path := range seen {
		if !slices.Contains(allowed, path) && !strings.HasPrefix(path, s.ConsoleLog) && !strings.Contains(path, "cloud-hypervisor") {
			t.Errorf("sees %s", path)
		}
	}
	for _, path := range []string{s.MemoryFile, s.Disks[1].Path, "/dev/kvm"} {
		if !slices.Contains(seen, path) {
			t.Errorf("does not see %s, only %q", path, seen)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(root+s.Disks[1].Path, &st); err != nil || st.Uid != uint32(s.Jail.UID) || st.Gid != uint32(s.Jail.GID) {
		t.Errorf("inside, a disk belongs to %d:%d (%v)", st.Uid, st.Gid, err)
	}
	if err := unix.Stat(s.Disks[1].Path, &st); err != nil || st.Uid != 0 {
		t.Errorf("outside, a disk belongs to %d (%v)", st.Uid, err)
	}
	// The dump of a commit is other machines' memory too.
	if err := unix.Access(root+s.MemoryFile, unix.W_OK); err != unix.EROFS {
		t.Errorf("writing the memory file: got %v, want EROFS", err)
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
}

// TestJailWithoutIDMaps: where a file system has none, what the mode of a file
// allows is enough, and anything else is refused with the reason.
func TestJailWithoutIDMaps(t *testing.T) {
	testlane.Need(t, testlane.Root)
	// A directory in /proc stands for such a file system.
	m := idMaps{user: vmm.Jail{UID: 64999, GID: 64998}}
	defer m.close()
	for path, want := range map[string]string{"/proc/version": "", "/proc/kallsyms": "", "/proc/kmsg": "id-mapped"} {
		fd, err := entry{path, readFile}.open(&m)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}

// TestJailOwnThread: a jail without a network namespace of its own is made on a
// thread that nothing else runs on afterwards.
func TestJailOwnThread(t *testing.T) {
	testlane.Need(t, testlane.Root)
	s := fakeSpec(t)
	s.Jail = &vmm.Jail{UID: 64999, GID: 64998}
	d := New(Options{Binary: fakeBinary(t)})
	for range 5 {
		s.RunDir = runDir(t)
		m, err := d.Launch(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		waitTick(t, m, s.ConsoleLog)
		checkJail(t, m, s)
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	roots, err := filepath.Glob("/proc/self/task/*/root")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		var strange []string
		for _, r := range roots {
			if to, err := os.Readlink(r); err == nil && to != "/" {
				strange = append(strange, to)
			}
		}
		if len(strange) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("threads have other root directories: %q", strange)
		}
	}
}
