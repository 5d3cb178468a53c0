package guestmem

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Copy writes the contents of pages to the same offsets of dst and returns the
// bytes copied. dst is made as long as the guest RAM; the rest of it is not
// touched.
func (m *Memory) Copy(ctx context.Context, pages *PageSet, dst *os.File) (int64, error) {
	total := int64(0)
	buf := make([]byte, 1<<20)
	for _, r := range m.regions {
		for first, count := range pages.Runs() {
			from, to := max(first, r.page), min(first+count, r.page+r.count)
			for from < to {
				if err := ctx.Err(); err != nil {
					return total, err
				}
				b := buf[:min(int64(len(buf)), (to-from)*PageBytes)]
				local := []unix.Iovec{{Base: &b[0]}}
				local[0].SetLen(len(b))
				remote := []unix.RemoteIovec{{Base: uintptr(r.addr + uint64(from-r.page)*PageBytes), Len: len(b)}}
				n, err := unix.ProcessVMReadv(m.target.PID, local, remote, 0)
				if err != nil {
					return total, fmt.Errorf("read guest memory of process %d: %w", m.target.PID, goneIfMissing(err))
				}
				n &^= PageBytes - 1
				if _, err := dst.WriteAt(b[:n], from*PageBytes); err != nil {
					return total, err
				}
				from += int64(n / PageBytes)
				total += int64(n)
			}
		}
	}
	if !m.alive() {
		return total, fmt.Errorf("read guest memory of process %d: %w", m.target.PID, ErrGone)
	}
	return total, nil
}
