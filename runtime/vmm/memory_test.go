package vmm

import "testing"

func TestMemoryOffset(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		address uint64
		want    int64
		ok      bool
	}{
		{0, 0, true},
		{3*gib - 1, 3*gib - 1, true},
		{3 * gib, 0, false}, // devices
		{4*gib - 1, 0, false},
		{4 * gib, 3 * gib, true},
		{68 * gib, 67 * gib, true},
		{1 << 52, 0, false}, // beyond what any CPU addresses
		{1<<64 - 1, 0, false},
	} {
		if got, ok := MemoryOffset(c.address); got != c.want || ok != c.ok {
			t.Errorf("MemoryOffset(%#x) = %#x, %v; want %#x, %v", c.address, got, ok, c.want, c.ok)
		}
	}
}
