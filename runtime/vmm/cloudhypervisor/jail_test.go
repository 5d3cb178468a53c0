package cloudhypervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// TestJailOfFake runs the contract of jails with the fake in the place of
// cloud-hypervisor.
func TestJailOfFake(t *testing.T) {
	// Whoever launches may be private by default.
	defer unix.Umask(unix.Umask(0o077))
	testlane.Need(t, testlane.Root)
	j := jailSuite(fakeBinary(t), fakeBoot(t))
	j.MemoryBytes, j.CounterBytes = 40<<20, counterBytes
	j.ListenTCP = func(t testing.TB, m vmm.Machine) error {
		return m.(*machine).operate(t.Context(), "ask", func(ctx context.Context, a api) error { return a.put(ctx, "fake.listen", nil) })
	}
	vmmtest.RunJail(t, j)
}

func TestJail(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.CloudHypervisor, testlane.KVM)
	j := jailSuite(realBinary(), guest(t))
	j.MemoryBytes, j.CounterBytes = 128<<20, 2<<20
	// Its first thread only waits for the others, without a filter of its own
	// beside ours.
	j.Workers = map[string]string{"Seccomp_filters": "≥ 2"}
	vmmtest.RunJail(t, j)
}

func jailSuite(binary string, boot vmmtest.Boot) vmmtest.JailSuite {
	return vmmtest.JailSuite{
		Suite: vmmtest.Suite{
			New:  func(testing.TB) vmm.Driver { return New(Options{Binary: binary}) },
			Boot: func(testing.TB) vmmtest.Boot { return boot },
		},
		Status: map[string]string{"Groups": "", "CapInh": "0000000000000000", "CapBnd": "0000000000000000"},
		Sees:   sees,
		Check:  checkFiles,
	}
}

// sees: all it sees is its own.
func sees(s vmm.Spec, path string) bool {
	switch path {
	case "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache": // of a program that is not static
		return true
	case s.MemoryFile, s.Kernel, s.Initramfs, s.Disks[0].Path, s.Disks[1].Path, "/dev/kvm", "/dev/null", "/dev/urandom":
		return true
	}
	return strings.HasPrefix(path, s.ConsoleLog) || strings.HasPrefix(path, ownDir(s.RunDir)) || strings.Contains(path, "cloud-hypervisor")
}

// checkFiles looks at whose the files are for the VMM, and what it may do to them.
func checkFiles(t testing.TB, m vmm.Machine, s vmm.Spec) {
	root := fmt.Sprintf("/proc/%d/root", m.Handle().PID)
	for _, path := range []string{s.MemoryFile, s.Disks[1].Path, "/dev/kvm"} {
		if _, err := os.Lstat(root + path); err != nil {
			t.Errorf("does not see %s: %v", path, err)
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
	user := vmmtest.JailUser
	s.Jail = &user
	binary := fakeBinary(t)
	d, j := New(Options{Binary: binary}), jailSuite(binary, fakeBoot(t))
	for range 5 {
		s.RunDir = runDir(t)
		m, err := d.Launch(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		waitTick(t, m, s.ConsoleLog)
		j.CheckProcess(t, m, s)
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
