package qemu_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

func TestContract(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.QEMU)
	cache := filepath.Join(t.TempDir(), "accel.json")
	boot := guest(t)
	vmmtest.Run(t, vmmtest.Suite{
		New:          func(testing.TB) vmm.Driver { return qemu.New(qemu.Options{TrialCache: cache}) },
		Boot:         func(testing.TB) vmmtest.Boot { return boot },
		MemoryBytes:  128 << 20,
		CounterBytes: 2 << 20,
		Dump: func(t testing.TB, m vmm.Machine, file string) {
			if err := qemu.DumpMemory(context.Background(), m, file, 128<<20); err != nil {
				t.Fatal(err)
			}
		},
		Generations: 20,
		Clones:      8,
	})
}

// guest is the counting guest on the product's kernel, which is fetched once
// for each user.
func guest(t testing.TB) vmmtest.Boot {
	t.Helper()
	testlane.Need(t, testlane.Mirror)
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	g, err := guestboot.Ensure(t.Context(), guestboot.Options{
		Dir:     filepath.Join(user, "sietch-test", "kernel"),
		InitELF: vmmtest.GuestProgram(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return vmmtest.Boot{Kernel: g.Kernel, Initramfs: g.Initramfs, Cmdline: g.Cmdline}
}
