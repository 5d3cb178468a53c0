package guestmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// softTracker uses the kernel's soft-dirty bits (CONFIG_MEM_SOFT_DIRTY, on in
// Debian and Ubuntu kernels). They are cleared for a whole process at once and
// reading them is not atomic with that, so the VMM's threads are stopped for
// the time of the scan: some milliseconds for each GiB.
type softTracker struct {
	mem *Memory
	ledger
}

func (m *Memory) trackSoftDirty() (*softTracker, error) {
	if err := probeSoftDirty(); err != nil {
		return nil, err
	}
	return &softTracker{mem: m}, nil
}

func (m *Memory) resumeSoftDirty(l ledger) (*softTracker, error) {
	if err := probeSoftDirty(); err != nil {
		return nil, errors.Join(ErrTracker, err)
	}
	return &softTracker{mem: m, ledger: l}, nil
}

func (t *softTracker) Name() string { return SoftDirty }
func (t *softTracker) State() State { return t.state(SoftDirty) }
func (t *softTracker) Close() error { return nil }

func (t *softTracker) Collect(ctx context.Context) (*PageSet, error) {
	anonymous, written := new(PageSet), new(PageSet)
	err := whileFrozen(ctx, t.mem.target.PID, func() error {
		err := t.mem.readPagemap(ctx, 0, t.mem.Pages(), func(page int64, e uint64) {
			if !anonymousEntry(e) || markerEntry(e) {
				return
			}
			anonymous.Add(page)
			if e&pmSoftDirty != 0 {
				written.Add(page)
			}
		})
		if err != nil {
			return err
		}
		return t.mem.clearSoftDirty()
	})
	if err != nil {
		t.uncertain = true
		return nil, fmt.Errorf("collect writes of process %d: %w", t.mem.target.PID, err)
	}
	return t.settle(anonymous, written), nil
}

func (t *softTracker) Recollect(ctx context.Context) (*PageSet, error) { return t.Collect(ctx) }

func (m *Memory) clearSoftDirty() error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/clear_refs", m.target.PID), os.O_WRONLY, 0)
	if err != nil {
		return goneIfMissing(err)
	}
	_, err = f.WriteString("4")
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("clear soft-dirty bits: %w", err)
	}
	if !m.alive() {
		return ErrGone
	}
	return nil
}

// probeSoftDirty looks whether a page that was just written carries the bit. A
// kernel without the feature accepts the clearing all the same.
func probeSoftDirty() error {
	page, err := unix.Mmap(-1, 0, PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map a page: %w", err)
	}
	defer unix.Munmap(page)
	page[0] = 1
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return err
	}
	defer f.Close()
	var entry [8]byte
	if _, err := f.ReadAt(entry[:], int64(uintptr(unsafe.Pointer(&page[0]))/PageBytes)*8); err != nil {
		return fmt.Errorf("read page map: %w", err)
	}
	goruntime.KeepAlive(page)
	if binary.LittleEndian.Uint64(entry[:])&pmSoftDirty == 0 {
		return errors.New("kernel has no soft-dirty bits")
	}
	return nil
}
