package qemu_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/sietch-dev/sietch/runtime/testlane"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/qemu"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

func TestContract(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.QEMU)
	cache := filepath.Join(t.TempDir(), "accel.json")
	boot := vmmtest.Guest(t)
	vmmtest.Run(t, vmmtest.Suite{
		New:          func(testing.TB) vmm.Driver { return qemu.New(qemu.Options{TrialCache: cache}) },
		Boot:         func(testing.TB) vmmtest.Boot { return boot },
		MemoryBytes:  160 << 20,
		CounterBytes: 8 << 20,
		Dump: func(t testing.TB, m vmm.Machine, file string) {
			if err := qemu.DumpMemory(context.Background(), m, file, 160<<20); err != nil {
				t.Fatal(err)
			}
		},
		Generations: 20,
		Clones:      8,
	})
	_ = os.Getpid
}
