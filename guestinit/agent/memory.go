package agent

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// heldMemory is memory taken out of the guest's use. It is huge pages: the
// kernel neither moves, swaps nor merges them while they are mapped, so their
// physical addresses stay true until they are let go. Plain pages can be moved
// by compaction at any time, and what the host takes then might be somebody's.
type heldMemory struct {
	mu     sync.Mutex
	blocks []heldBlock
}

type heldBlock struct {
	memory  []byte
	address uint64 // guest physical
	mark    []byte // that it begins with
}

const (
	hugePagePool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	// reserveShare of the memory, and reserveBytes at least, stay for the guest.
	reserveShare = 32
	reserveBytes = 16 << 20
)

// serveMemory holds as much memory as the host wants held.
func (c *conn) serveMemory(req *request) bool {
	var r proto.MemoryRequest
	if err := json.Unmarshal(req.body, &r); err != nil {
		return c.fail(coded(proto.CodeInvalid, "read request: %w", err))
	}
	if len(r.Mark) != proto.MarkBytes {
		return c.fail(coded(proto.CodeInvalid, "a mark has %d bytes, not %d", proto.MarkBytes, len(r.Mark)))
	}
	a, err := c.s.held.hold(r)
	if err != nil {
		return c.fail(fmt.Errorf("hold memory: %w", err))
	}
	return c.okJSON(a)
}

func (h *heldMemory) bytes() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return int64(len(h.blocks)) * proto.MemoryBlock
}

func (h *heldMemory) hold(r proto.MemoryRequest) (a proto.MemoryAnswer, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.HoldBytes >= 0 {
		want := int((r.HoldBytes + proto.MemoryBlock - 1) / proto.MemoryBlock)
		if want < len(h.blocks) {
			err = h.shrink(want)
		} else if want > len(h.blocks) {
			err = h.grow(want)
		}
		if err != nil {
			return a, err
		}
	}
	a.Blocks = make([]uint64, 0, len(h.blocks))
	for i, b := range h.blocks {
		// Once only: the host has to lend a page for every mark.
		if !bytes.Equal(b.mark, r.Mark) {
			copy(b.memory, r.Mark)
			h.blocks[i].mark = r.Mark
		}
		a.Blocks = append(a.Blocks, b.address)
	}
	slices.Sort(a.Blocks)
	a.Memory, err = readMemory()
	a.Memory.HeldBytes = int64(len(h.blocks)) * proto.MemoryBlock
	return a, err
}

// grow takes blocks until there are want of them or the guest has no more to
// spare. The kernel's pool of huge pages is shared with the guest's programs: it
// is made larger by what is taken.
func (h *heldMemory) grow(want int) error {
	m, err := readMemory()
	if err != nil {
		return err
	}
	spare := m.AvailableBytes - max(reserveBytes, m.TotalBytes/reserveShare)
	n := min(int64(want-len(h.blocks)), spare/proto.MemoryBlock)
	if n <= 0 {
		return nil
	}
	if err := addHugePages(int(n)); err != nil {
		return err
	}
	taken := 0
	for ; taken < int(n); taken++ {
		b, err := takeBlock()
		if errors.Is(err, unix.ENOMEM) {
			break // the pool did not grow as far: memory is in too small pieces
		}
		if err != nil {
			return errors.Join(err, addHugePages(taken-int(n)))
		}
		h.blocks = append(h.blocks, b)
	}
	return nil
}

func (h *heldMemory) shrink(want int) error {
	n := len(h.blocks) - want
	for _, b := range h.blocks[want:] {
		if err := unix.Munmap(b.memory); err != nil {
			return fmt.Errorf("unmap: %w", err)
		}
	}
	clear(h.blocks[want:])
	h.blocks = h.blocks[:want]
	return addHugePages(-n)
}

// addHugePages makes the kernel's pool larger or smaller, as far as it goes.
func addHugePages(n int) error {
	if n == 0 {
		return nil
	}
	text, err := os.ReadFile(hugePagePool)
	if err != nil {
		return fmt.Errorf("read pool of huge pages: %w", err)
	}
	now, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return fmt.Errorf("read pool of huge pages: %w", err)
	}
	if err := os.WriteFile(hugePagePool, strconv.AppendInt(nil, int64(max(0, now+n)), 10), 0); err != nil {
		return fmt.Errorf("set pool of huge pages: %w", err)
	}
	return nil
}

// takeBlock maps a huge page of the pool and finds its address.
func takeBlock() (b heldBlock, err error) {
	// A private mapping of huge pages reserves them here: ENOMEM when there is
	// none, rather than SIGBUS at the first touch.
	b.memory, err = unix.Mmap(-1, 0, proto.MemoryBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
	if err != nil {
		return b, fmt.Errorf("map a huge page: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Munmap(b.memory))
		}
	}()
	b.memory[0] = 1
	b.address, err = physicalAddress(b.memory)
	return b, err
}

// physicalAddress looks a page that is in memory up in /proc/self/pagemap.
func physicalAddress(page []byte) (uint64, error) {
	const (
		entryBytes = 8
		pageBytes  = 4096
		present    = 1 << 63
		frameMask  = 1<<55 - 1
	)
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var entry [entryBytes]byte
	if _, err := f.ReadAt(entry[:], int64(addressOf(page)/pageBytes*entryBytes)); err != nil {
		return 0, fmt.Errorf("read page map: %w", err)
	}
	e := binary.NativeEndian.Uint64(entry[:])
	frame := e & frameMask
	if e&present == 0 || frame == 0 {
		return 0, errors.New("the page map does not say where memory is")
	}
	return frame * pageBytes, nil
}
