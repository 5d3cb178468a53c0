package cloudhypervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest"
)

// TestContractOfFake runs the contract with the driver as it is and the fake in
// the place of cloud-hypervisor, on hosts without KVM too.
func TestContractOfFake(t *testing.T) {
	boot := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(boot, []byte("not booted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, cache := fakeBinary(t), filepath.Join(t.TempDir(), "trial.json")
	vmmtest.Run(t, vmmtest.Suite{
		New:          func(testing.TB) vmm.Driver { return New(Options{Binary: binary, TrialCache: cache}) },
		Boot:         func(testing.TB) vmmtest.Boot { return vmmtest.Boot{Kernel: boot, Initramfs: boot} },
		MemoryBytes:  40 << 20,
		CounterBytes: counterBytes,
		Generations:  20,
		Clones:       16,
	})
}
