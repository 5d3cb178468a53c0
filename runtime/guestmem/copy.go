package guestmem

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Copy writes the present contents of pages to the same offsets of dst and
// returns the bytes that are now right there. dst is made as long as the guest
// RAM; what is outside of pages is not touched. Zero pages become holes where
// dst's file system can make them, and cost nothing in a file that is new.
//
// Reading and writing overlap; the file system's part (a lock on the file, and
// the making of new blocks) is the larger one and cannot be split further.
func (m *Memory) Copy(ctx context.Context, pages *PageSet, dst *os.File) (int64, error) {
	w, err := newPageWriter(dst, m.target.SizeBytes)
	if err == nil {
		err = m.check(pages)
	}
	if err != nil {
		return 0, fmt.Errorf("copy guest memory of process %d: %w", m.target.PID, err)
	}
	type filled struct {
		batch batch
		buf   []byte
	}
	const buffers = 3
	free, full := make(chan []byte, buffers), make(chan filled, buffers)
	for range buffers {
		free <- make([]byte, batchBytes)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(full)
		for b := range m.batches(pages) {
			select {
			case buf := <-free:
				if err := m.readBatch(b, buf[:b.bytes()]); err != nil {
					return fmt.Errorf("read: %w", err)
				}
				full <- filled{b, buf}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !m.alive() {
			return ErrGone
		}
		return nil
	})
	total := int64(0)
	g.Go(func() error {
		for f := range full {
			at := int64(0)
			for _, p := range f.batch {
				n := p.count * PageBytes
				if err := w.write(p.page, f.buf[at:at+n]); err != nil {
					return err
				}
				at, total = at+n, total+n
			}
			free <- f.buf
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return total, fmt.Errorf("copy guest memory of process %d: %w", m.target.PID, err)
	}
	return total, nil
}

// Store writes the held pages to the same offsets of dst, as [Memory.Copy] does.
// sizeBytes is the length dst gets when it is shorter.
func (c *Contents) Store(ctx context.Context, dst *os.File, sizeBytes int64) (int64, error) {
	w, err := newPageWriter(dst, sizeBytes)
	if err != nil {
		return 0, err
	}
	at := int64(0)
	for first, count := range c.pages.Runs() {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		n := count * PageBytes
		if err := w.write(first, c.buf[at:at+n]); err != nil {
			return at, err
		}
		at += n
	}
	return at, nil
}

// pageWriter writes pages to a sparse file.
type pageWriter struct {
	dst   *os.File
	empty bool // dst was all hole when we began: zero pages need no writing
	punch bool // holes can be made
}

func newPageWriter(dst *os.File, sizeBytes int64) (*pageWriter, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dst.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dst.Name(), err)
	}
	if st.Size < sizeBytes {
		if err := dst.Truncate(sizeBytes); err != nil {
			return nil, fmt.Errorf("extend memory file: %w", err)
		}
	}
	return &pageWriter{dst: dst, empty: st.Blocks == 0, punch: true}, nil
}

var zeroPage [PageBytes]byte

// write puts data, whole pages, at page. Runs of zero pages are left out.
func (w *pageWriter) write(page int64, data []byte) error {
	zero := func(i int) bool { return bytes.Equal(data[i:i+PageBytes], zeroPage[:]) }
	for from := 0; from < len(data); {
		isZero := zero(from)
		to := from + PageBytes
		for to < len(data) && zero(to) == isZero {
			to += PageBytes
		}
		offset := page*PageBytes + int64(from)
		if !isZero || !w.hole(offset, int64(to-from)) {
			if _, err := w.dst.WriteAt(data[from:to], offset); err != nil {
				return fmt.Errorf("write memory file: %w", err)
			}
		}
		from = to
	}
	return nil
}

// hole makes a part of the file read as zeroes without writing them, and
// reports whether that was done.
func (w *pageWriter) hole(offset, length int64) bool {
	if w.empty {
		return true
	}
	if w.punch {
		err := unix.Fallocate(int(w.dst.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
		w.punch = err == nil
	}
	return w.punch
}
