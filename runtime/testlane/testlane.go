// Package testlane decides which tests a host can run.
//
// A lane is something a host may lack (root, QEMU, …). A test that needs lanes
// calls [Need] first: it is skipped with the reason where one is missing, and
// fails instead where SIETCH_TEST_REQUIRE, a comma-separated list, names it. So
// a developer's laptop shows what was not run, and CI cannot pass by skipping.
package testlane

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Lanes a test can ask for.
const (
	Root            = "root"             // effective uid 0
	QEMU            = "qemu"             // qemu-system-x86_64 on PATH
	KVM             = "kvm"              // a CPU flag and a usable /dev/kvm
	CloudHypervisor = "cloud-hypervisor" // its binary on PATH or in SIETCH_CLOUD_HYPERVISOR
	BuildKit        = "buildkit"         // runc and mkfs.ext4
	Mirror          = "mirror"           // apt-get, mmdebstrap and a package mirror that answers
	Node            = "node"             // node and npm
	Desktop         = "desktop"          // asked for: a test with a browser in a machine takes long
	Load            = "load"             // asked for: much passes through emulated machines slowly
	Python          = "python"           // python3 that can make environments
	PyPI            = "pypi"             // a package index of Python that answers; see Miss
)

// Need skips t, or fails it when the lane is required, unless every lane is there.
func Need(t testing.TB, lanes ...string) {
	t.Helper()
	for _, lane := range lanes {
		if err := check(lane); err != nil {
			Miss(t, lane, err)
		}
	}
}

// Has says whether a lane is there, for tests that do less without it.
func Has(lane string) bool { return check(lane) == nil }

// Miss is for a lane that only its use shows to be missing, and why: it skips t,
// or fails it when the lane is required.
func Miss(t testing.TB, lane string, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("SIETCH_TEST_REQUIRE"), ","), lane) {
		t.Fatalf("lane %s is required here and missing: %v", lane, err)
	}
	t.Skipf("lane %s is missing: %v", lane, err)
}

func check(lane string) error {
	switch lane {
	case Root:
		if os.Geteuid() != 0 {
			return fmt.Errorf("not root")
		}
		return nil
	case QEMU:
		return tools("qemu-system-x86_64")
	case KVM:
		return kvm()
	case CloudHypervisor:
		if p := os.Getenv("SIETCH_CLOUD_HYPERVISOR"); p != "" {
			return tools(p)
		}
		return tools("cloud-hypervisor")
	case BuildKit:
		return tools("runc", "mkfs.ext4", "debugfs")
	case Mirror:
		return tools("apt-get", "mmdebstrap", "dpkg-deb")
	case Node:
		return tools("node", "npm")
	case Desktop:
		if slices.Contains(strings.Split(os.Getenv("SIETCH_TEST_REQUIRE"), ","), Desktop) {
			return nil
		}
		return fmt.Errorf("it takes many minutes where processors are emulated, and is run when SIETCH_TEST_REQUIRE names it")
	case Load:
		if slices.Contains(strings.Split(os.Getenv("SIETCH_TEST_REQUIRE"), ","), Load) {
			return nil
		}
		return fmt.Errorf("it is run when SIETCH_TEST_REQUIRE names it")
	case Python:
		if err := tools("python3"); err != nil {
			return err
		}
		// ensurepip is what python3-venv brings and python3 alone lacks.
		if out, err := exec.Command("python3", "-c", "import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
			return fmt.Errorf("python3 of 3.9 or newer with venv: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	return fmt.Errorf("no lane of that name")
}

func tools(names ...string) error {
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			return err
		}
	}
	return nil
}

func kvm() error {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	if f := " " + strings.ReplaceAll(string(info), "\n", " ") + " "; !strings.Contains(f, " vmx ") && !strings.Contains(f, " svm ") {
		return fmt.Errorf("no vmx or svm flag in /proc/cpuinfo")
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
