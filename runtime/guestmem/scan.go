package guestmem

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// Bits of an entry of /proc/PID/pagemap.
const (
	pmSoftDirty = 1 << 55
	pmFile      = 1 << 61
	pmSwap      = 1 << 62
	pmPresent   = 1 << 63
)

// scanned is one look at the page tables.
type scanned struct {
	anonymous *PageSet // differ from the memory file, or may
	written   *PageSet // subset of anonymous: written since they were last protected
}

// scan walks the page tables of the guest RAM. With protect it write-protects
// what it reports as written, atomically for each page.
func (m *Memory) scan(ctx context.Context, protect bool) (*scanned, error) {
	return m.readPagemap(ctx)
}

func (m *Memory) probeScan() bool { return false }

// readPagemap is the scan for kernels without PAGEMAP_SCAN (before Linux 6.7).
func (m *Memory) readPagemap(ctx context.Context) (*scanned, error) {
	set := new(PageSet)
	buf := make([]byte, 1<<20)
	for _, r := range m.regions {
		for at := int64(0); at < r.count; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			want := min(int64(len(buf)), (r.count-at)*8)
			n, err := m.pagemap.ReadAt(buf[:want], (int64(r.addr/PageBytes)+at)*8)
			if n == 0 {
				if err == io.EOF {
					return nil, ErrGone
				}
				return nil, fmt.Errorf("read pagemap: %w", err)
			}
			for i := 0; i+8 <= n; i += 8 {
				e := binary.LittleEndian.Uint64(buf[i:])
				if e&(pmPresent|pmSwap) != 0 && e&pmFile == 0 {
					set.Add(r.page + at + int64(i/8))
				}
			}
			at += int64(n / 8)
		}
	}
	return &scanned{anonymous: set, written: set.Clone()}, nil
}
