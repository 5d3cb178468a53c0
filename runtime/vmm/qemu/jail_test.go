package qemu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

func TestJail(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.QEMU)
	boot := guest(t)
	vmmtest.RunJail(t, vmmtest.JailSuite{
		Suite: vmmtest.Suite{
			New:          func(testing.TB) vmm.Driver { return qemu.New(qemu.Options{}) },
			Boot:         func(testing.TB) vmmtest.Boot { return boot },
			MemoryBytes:  128 << 20,
			CounterBytes: 2 << 20,
		},
		// The filters are ours and its own; a thread has those of its maker, too.
		Status: map[string]string{"Groups": fmt.Sprint(vmmtest.JailUser.GID), "Seccomp_filters": "≥ 2"},
		Check: func(t testing.TB, m vmm.Machine, s vmm.Spec) {
			link := fmt.Sprintf("/proc/%d/root", m.Handle().PID)
			if root, err := os.Readlink(link); err != nil || root != filepath.Join(s.RunDir, "root") {
				t.Errorf("root directory is %s (%v)", root, err)
			}
		},
		ListenTCP: func(t testing.TB, m vmm.Machine) error { return qemu.ListenTCP(t.Context(), m) },
	})
}
