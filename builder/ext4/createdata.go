package ext4

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxExtentBlocks is the longest an extent can be.
const maxExtentBlocks = maxInitialized

var zeroBlock [blockSize]byte

// file copies the content of a regular file, leaving blocks of zeroes out.
func (w *writer) file(ctx context.Context, n *node) ([]extent, error) {
	if n.size == 0 {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(w.dir, n.path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []extent
	for off := int64(0); off < n.size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		first, end, err := nextData(f, off, n.size)
		if err != nil {
			return nil, err
		}
		if first == end {
			break // a hole up to the end
		}
		// Whole blocks, whatever units the source keeps holes in.
		first = max(first&^(blockSize-1), off)
		if out, err = w.copyRange(ctx, n, f, first, min((end+blockSize-1)&^(blockSize-1), n.size), out); err != nil {
			return nil, err
		}
		off = (end + blockSize - 1) &^ (blockSize - 1)
	}
	return out, nil
}

// nextData finds the next range of a file that is no hole; empty when there is
// none.
func nextData(f *os.File, off, size int64) (first, end int64, err error) {
	first, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	switch err {
	case nil:
	case unix.ENXIO:
		return size, size, nil
	case unix.EINVAL, unix.ENOTSUP: // a file system without the notion
		return off, size, nil
	default:
		return 0, 0, fmt.Errorf("find data: %w", err)
	}
	end, err = unix.Seek(int(f.Fd()), first, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find hole: %w", err)
	}
	return min(first, size), min(end, size), nil
}

// copyRange copies [first, end) of a file, where first is a block's.
func (w *writer) copyRange(ctx context.Context, n *node, f *os.File, first, end int64, out []extent) ([]extent, error) {
	for off := first; off < end; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		want := min(int64(len(w.buf)), end-off)
		if _, err := f.ReadAt(w.buf[:want], off); err != nil {
			if err == io.EOF {
				err = fmt.Errorf("it is shorter than %d bytes now: %w", n.size, io.ErrUnexpectedEOF)
			}
			return nil, err
		}
		padded := (want + blockSize - 1) &^ (blockSize - 1)
		clear(w.buf[want:padded])
		for k := int64(0); k < padded; {
			if isZero(w.buf[k : k+blockSize]) {
				k += blockSize
				continue
			}
			run := k
			for k < padded && !isZero(w.buf[k:k+blockSize]) {
				k += blockSize
			}
			blocks := uint64(k-run) / blockSize
			start := w.alloc(blocks)
			if err := w.writeBlocks(start, w.buf[run:k]); err != nil {
				return nil, err
			}
			out = appendExtent(out, extent{logical: uint32((off + run) / blockSize), length: uint32(blocks), start: start})
			n.blocks += int64(blocks)
			w.content += min(k, want) - run
		}
		off += want
	}
	return out, nil
}

func isZero(block []byte) bool { return bytes.Equal(block, zeroBlock[:]) }

// appendExtent adds an extent, joining it to the last where both continue.
func appendExtent(list []extent, x extent) []extent {
	if k := len(list) - 1; k >= 0 {
		last := &list[k]
		if last.logical+last.length == x.logical && last.start+uint64(last.length) == x.start && last.length+x.length <= maxExtentBlocks {
			last.length += x.length
			return list
		}
	}
	return append(list, x)
}

// extentTree writes the map of an inode: into the inode as far as four entries
// go, else into a tree of blocks below it.
func (w *writer) extentTree(n *node, root []byte, list []extent) error {
	const inRoot = 4
	perBlock := (blockSize - 12) / 12
	// entries of the level being built: logical block and the twelve bytes.
	type entry struct {
		logical uint32
		raw     [12]byte
	}
	level := make([]entry, len(list))
	le := binary.LittleEndian
	for k, x := range list {
		e := entry{logical: x.logical}
		le.PutUint32(e.raw[0:], x.logical)
		le.PutUint16(e.raw[4:], uint16(x.length))
		le.PutUint16(e.raw[6:], uint16(x.start>>32))
		le.PutUint32(e.raw[8:], uint32(x.start))
		level[k] = e
	}
	header := func(p []byte, entries, most, depth int) {
		le.PutUint16(p[0:], extentMagic)
		le.PutUint16(p[2:], uint16(entries))
		le.PutUint16(p[4:], uint16(most))
		le.PutUint16(p[6:], uint16(depth))
	}
	depth := 0
	for ; len(level) > inRoot; depth++ {
		var above []entry
		for len(level) > 0 {
			part := level[:min(perBlock, len(level))]
			level = level[len(part):]
			block := make([]byte, blockSize)
			header(block, len(part), perBlock, depth)
			for k, e := range part {
				copy(block[12+12*k:], e.raw[:])
			}
			tail := 12 + 12*perBlock
			le.PutUint32(block[tail:], crc32c(inodeSeed(w.seed, n.number), block[:tail]))
			at := w.alloc(1)
			n.blocks++
			if err := w.writeBlocks(at, block); err != nil {
				return err
			}
			up := entry{logical: part[0].logical}
			le.PutUint32(up.raw[0:], part[0].logical)
			le.PutUint32(up.raw[4:], uint32(at))
			le.PutUint16(up.raw[8:], uint16(at>>32))
			above = append(above, up)
		}
		level = above
	}
	header(root, len(level), inRoot, depth)
	for k, e := range level {
		copy(root[12+12*k:], e.raw[:])
	}
	return nil
}

// File types in directory entries.
var direntType = map[uint32]byte{
	unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFCHR: 3, unix.S_IFBLK: 4, unix.S_IFIFO: 5, unix.S_IFSOCK: 6, unix.S_IFLNK: 7,
}

// directory writes the blocks of a directory. Its names are in order, in a plain
// list without a hash index.
func (w *writer) directory(n *node) ([]extent, error) {
	const usable = blockSize - direntTail
	le := binary.LittleEndian
	var blocks []byte
	block := make([]byte, 0, blockSize)
	last := 0 // offset of the last entry, which takes the rest of the block
	flush := func() {
		le.PutUint16(block[last+4:], uint16(usable-last))
		block = block[:blockSize]
		tail := block[usable:]
		clear(tail)
		le.PutUint16(tail[4:], direntTail)
		tail[7] = 0xDE
		le.PutUint32(tail[8:], crc32c(inodeSeed(w.seed, n.number), block[:usable]))
		blocks = append(blocks, block...)
		block = make([]byte, 0, blockSize)
		last = 0
	}
	add := func(name string, to *node) {
		size := (8 + len(name) + 3) &^ 3
		if len(block)+size > usable {
			flush()
		}
		last = len(block)
		e := block[last : last+size]
		le.PutUint32(e, to.number)
		le.PutUint16(e[4:], uint16(size))
		e[6] = byte(len(name))
		e[7] = direntType[to.mode&unix.S_IFMT]
		copy(e[8:], name)
		block = block[:last+size]
	}
	add(".", n)
	add("..", n.parent)
	for _, e := range n.names {
		add(e.name, e.node)
	}
	flush()
	n.size = int64(len(blocks))
	count := uint64(len(blocks) / blockSize)
	n.blocks += int64(count)
	start := w.alloc(count)
	if err := w.writeBlocks(start, blocks); err != nil {
		return nil, err
	}
	var out []extent
	for done := uint64(0); done < count; {
		part := min(count-done, maxExtentBlocks)
		out = append(out, extent{logical: uint32(done), length: uint32(part), start: start + done})
		done += part
	}
	return out, nil
}

// direntTail is the fake entry with the checksum at the end of a block.
const direntTail = 12
