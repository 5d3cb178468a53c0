package vmm

// Where guest RAM is, on both machine models: up to lowMemory from address 0 on,
// the rest from 4 GiB on, so that devices have the space in between.
const (
	lowMemory  = 3 << 30
	highMemory = 4 << 30
)

// MemoryOffset is where in Spec.MemoryFile a guest physical address is; not ok
// for one where no machine has RAM.
func MemoryOffset(address uint64) (offset int64, ok bool) {
	switch {
	case address < lowMemory:
		return int64(address), true
	case address >= highMemory && address < 1<<52:
		return int64(address - highMemory + lowMemory), true
	}
	return 0, false
}
