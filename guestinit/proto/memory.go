package proto

// MemoryBlock is the unit in which the agent holds memory: a huge page, so that
// a guest's gigabytes are a few thousand addresses and the kernel never moves
// what is held.
const MemoryBlock = 2 << 20

// MarkBytes is the length of a mark.
const MarkBytes = 16

// MemoryRequest asks the agent to hold memory that nothing else in the guest
// gets meanwhile: POST /v1/memory. What is held has no contents, so the host may
// take the memory behind it.
type MemoryRequest struct {
	// HoldBytes is how much is to be held in all, rounded up to blocks; negative:
	// as much as now.
	HoldBytes int64 `json:"hold_bytes"`
	// Mark is written to the beginning of every block that is held, new or not:
	// the host can see that an address is what it is said to be.
	Mark []byte `json:"mark"`
}

// MemoryAnswer says what is held now. It is less than was asked for where the
// guest has no more to spare.
type MemoryAnswer struct {
	// Blocks are guest physical addresses, ascending.
	Blocks []uint64    `json:"blocks"`
	Memory GuestMemory `json:"memory"`
}

// GuestMemory is the guest kernel's view of its memory (/proc/meminfo), in bytes.
type GuestMemory struct {
	TotalBytes     int64 `json:"total_bytes"` // the kernel's own part is not in it
	FreeBytes      int64 `json:"free_bytes"`
	AvailableBytes int64 `json:"available_bytes"` // free, and caches that can be dropped
	CachedBytes    int64 `json:"cached_bytes"`
	HeldBytes      int64 `json:"held_bytes"` // given back to the host, see MemoryRequest
}

// Stats answers GET /v1/stats: the guest's own view.
type Stats struct {
	Memory GuestMemory `json:"memory"`
	// Load is the load average of 1, 5 and 15 minutes.
	Load [3]float64 `json:"load"`
	// UptimeMS counts from the boot, pauses left out.
	UptimeMS int64 `json:"uptime_ms"`
	// Received and sent by the network card, the agent's own traffic included.
	RxBytes int64 `json:"rx_bytes"`
	TxBytes int64 `json:"tx_bytes"`
	// The root file system.
	DiskBytes     int64 `json:"disk_bytes"`
	DiskFreeBytes int64 `json:"disk_free_bytes"`
}
