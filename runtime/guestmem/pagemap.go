package guestmem

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pmSwapTypeMask = 1<<5 - 1  // of a swapped page; readable with CAP_SYS_ADMIN
	pmFrameMask    = 1<<55 - 1 // swap type and offset, zero when hidden
	pmSoftDirty    = 1 << 55
	pmFile         = 1 << 61
	pmSwap         = 1 << 62
	pmPresent      = 1 << 63

	// swapTypeMarker is the swap type of entries that are no swapped page but a
	// note of the kernel to itself (PTE_MARKER, the last of the 32 types).
	swapTypeMarker = 31
)

// anonymousEntry reports whether the page differs from the memory file, or may:
// it is there or swapped out, and not the file's.
func anonymousEntry(e uint64) bool { return e&(pmPresent|pmSwap) != 0 && e&pmFile == 0 }

// readPagemap calls visit for every page from first on, in order.
func (m *Memory) readPagemap(ctx context.Context, first, count int64, visit func(page int64, entry uint64)) error {
	buf := make([]byte, min(count*8, 1<<20))
	for _, r := range m.regions {
		from, to := max(first, r.page), min(first+count, r.page+r.count)
		for from < to {
			if err := ctx.Err(); err != nil {
				return err
			}
			want := min(int64(len(buf)), (to-from)*8)
			n, err := m.pagemap.ReadAt(buf[:want], (int64(r.addr/PageBytes)+from-r.page)*8)
			if n == 0 {
				if err == io.EOF {
					return ErrGone // the address space is empty
				}
				return fmt.Errorf("read page map: %w", err)
			}
			for i := 0; i+8 <= n; i += 8 {
				visit(from+int64(i/8), binary.LittleEndian.Uint64(buf[i:]))
			}
			from += int64(n / 8)
		}
	}
	return nil
}

// readAnonymous is the form of scanAnonymous for kernels without PAGEMAP_SCAN.
func (m *Memory) readAnonymous(ctx context.Context) (*PageSet, error) {
	set := new(PageSet)
	err := m.readPagemap(ctx, 0, m.Pages(), func(page int64, e uint64) {
		if anonymousEntry(e) && !markerEntry(e) {
			set.Add(page)
		}
	})
	return set, err
}

func markerEntry(e uint64) bool {
	return e&pmSwap != 0 && e&pmPresent == 0 && e&pmSwapTypeMask == swapTypeMarker
}

// markers looks at pages that seem swapped out. A page that was discarded while
// protected leaves such a marker: its contents are the memory file's again.
// Pages whose kind is hidden from this process are unknown.
func (m *Memory) markers(ctx context.Context, swapped *PageSet) (discarded, unknown *PageSet, err error) {
	discarded, unknown = new(PageSet), new(PageSet)
	for first, count := range swapped.Runs() {
		err := m.readPagemap(ctx, first, count, func(page int64, e uint64) {
			switch {
			case markerEntry(e):
				discarded.Add(page)
			case e&pmSwap != 0 && e&pmFrameMask == 0:
				unknown.Add(page)
			}
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return discarded, unknown, nil
}
