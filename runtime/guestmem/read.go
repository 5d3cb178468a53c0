package guestmem

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

const (
	batchBytes = 1 << 20
	// batchPieces is how many places of the VMM's memory one system call reads
	// from (UIO_MAXIOV of the kernel is 1024).
	batchPieces = 256
)

// piece is a run of pages that lies in one region.
type piece struct {
	page, count int64
	addr        uint64
}

// batch is what one process_vm_readv reads; the pieces follow each other in
// the buffer.
type batch []piece

func (b batch) bytes() int64 {
	n := int64(0)
	for _, p := range b {
		n += p.count * PageBytes
	}
	return n
}

// batches cuts a set into batches, in order.
func (m *Memory) batches(pages *PageSet) iter.Seq[batch] {
	return func(yield func(batch) bool) {
		var b batch
		room := int64(batchBytes / PageBytes)
		for first, count := range pages.Runs() {
			for _, r := range m.regions {
				from, to := max(first, r.page), min(first+count, r.page+r.count)
				for from < to {
					n := min(to-from, room)
					b = append(b, piece{page: from, count: n, addr: r.addr + uint64(from-r.page)*PageBytes})
					from, room = from+n, room-n
					if room == 0 || len(b) == batchPieces {
						if !yield(b) {
							return
						}
						b, room = nil, batchBytes/PageBytes
					}
				}
			}
		}
		if len(b) > 0 {
			yield(b)
		}
	}
}

// check refuses a set with pages that are not guest RAM.
func (m *Memory) check(pages *PageSet) error {
	if last := pages.last(); last >= m.Pages() {
		return fmt.Errorf("page %d is beyond the %d pages of guest memory", last, m.Pages())
	}
	return nil
}

// readBatch fills buf with the contents of b.
func (m *Memory) readBatch(b batch, buf []byte) error {
	var remote [batchPieces]unix.RemoteIovec
	for i, p := range b {
		remote[i] = unix.RemoteIovec{Base: uintptr(p.addr), Len: int(p.count) * PageBytes}
	}
	left := remote[:len(b)]
	for len(buf) > 0 {
		local := []unix.Iovec{{Base: &buf[0]}}
		local[0].SetLen(len(buf))
		n, err := unix.ProcessVMReadv(m.target.PID, local, left, 0)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = unix.EFAULT
		}
		if err != nil {
			return m.readError(err)
		}
		buf = buf[n:]
		// A short read is legal at any point; go on from there.
		for n > 0 {
			step := min(n, left[0].Len)
			left[0].Base += uintptr(step)
			left[0].Len -= step
			n -= step
			if left[0].Len == 0 {
				left = left[1:]
			}
		}
	}
	return nil
}

// readError tells a process that ended, or is about to, from other trouble.
func (m *Memory) readError(err error) error {
	if errors.Is(err, unix.ESRCH) || !m.alive() {
		return ErrGone
	}
	return fmt.Errorf("process_vm_readv: %w", err)
}

// Contents holds the contents of some pages in this process's memory.
//
// It exists for the time under a pause: reading pages into memory that is ready
// costs a fifth of writing them to a file.
type Contents struct {
	buf   []byte // whole mapping
	pages PageSet
}

// NewContents makes room for a number of bytes, and touches it, so that a
// later Read does not wait for the kernel to find memory.
func NewContents(capacityBytes int64) (*Contents, error) {
	capacityBytes = max(capacityBytes, PageBytes)
	// Populated after the advice, so that huge pages are used where there are any.
	buf, err := unix.Mmap(-1, 0, int(capacityBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for page contents: %w", capacityBytes, err)
	}
	_ = unix.Madvise(buf, unix.MADV_HUGEPAGE) // advice only
	if err := unix.Madvise(buf, unix.MADV_POPULATE_WRITE); err != nil {
		for i := 0; i < len(buf); i += PageBytes { // before Linux 5.14
			buf[i] = 0
		}
	}
	return &Contents{buf: buf}, nil
}

// Free gives the memory back. Idempotent.
func (c *Contents) Free() error {
	if c.buf == nil {
		return nil
	}
	buf := c.buf
	c.buf, c.pages = nil, PageSet{}
	return unix.Munmap(buf)
}

// CapacityBytes is how much fits.
func (c *Contents) CapacityBytes() int64 { return int64(len(c.buf)) }

// Pages is the set held now; not to be changed.
func (c *Contents) Pages() *PageSet { return &c.pages }

// All yields page numbers and contents in order. The bytes belong to c.
func (c *Contents) All() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		at := int64(0)
		for first, count := range c.pages.Runs() {
			for n := first; n < first+count; n++ {
				if !yield(n, c.buf[at:at+PageBytes]) {
					return
				}
				at += PageBytes
			}
		}
	}
}

// Read replaces what c holds with the present contents of pages, which must
// fit.
func (m *Memory) Read(ctx context.Context, pages *PageSet, c *Contents) error {
	c.pages = PageSet{}
	err := m.check(pages)
	if err == nil && pages.Bytes() > c.CapacityBytes() {
		err = fmt.Errorf("%d bytes do not fit into %d", pages.Bytes(), c.CapacityBytes())
	}
	at := int64(0)
	for b := range m.batches(pages) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			break
		}
		n := b.bytes()
		err = m.readBatch(b, c.buf[at:at+n])
		at += n
	}
	if err == nil && !m.alive() {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("read guest memory of process %d: %w", m.target.PID, err)
	}
	c.pages = *pages.Clone()
	return nil
}
