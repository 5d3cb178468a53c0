package ext4

import (
	"encoding/binary"
	"fmt"
	"io"
	"sort"

	"golang.org/x/sys/unix"
)

const (
	extentMagic    = 0xF30A
	maxExtentDepth = 5
	maxInitialized = 32768
)

// extent maps length blocks from the logical block of a file to the image.
type extent struct {
	logical uint32
	length  uint32
	start   uint64
	unread  bool // allocated, never written: reads as zeroes
}

// extents returns the whole map of an inode in logical order.
func (fs *FS) extents(i *Inode) ([]extent, error) {
	switch f := i.flags(); {
	case f&(flagInlineData|flagEncrypt|flagEAInode) != 0:
		return nil, fmt.Errorf("%w: inode %d has flags %#x", ErrUnsupported, i.Number, f)
	case f&flagExtents == 0:
		if i.Size == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: inode %d has a block map", ErrUnsupported, i.Number)
	}
	var out []extent
	if err := fs.extentNode(i, i.raw[0x28:0x28+60], -1, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// extentNode adds the extents below one node. depth is what the parent expects,
// -1 for the root.
func (fs *FS) extentNode(i *Inode, node []byte, depth int, out *[]extent) error {
	bad := func(what string) error {
		return fmt.Errorf("%w: extents of inode %d: %s", ErrCorrupt, i.Number, what)
	}
	le := binary.LittleEndian
	if le.Uint16(node) != extentMagic {
		return bad("no header")
	}
	entries, d := int(le.Uint16(node[2:])), int(le.Uint16(node[6:]))
	if depth >= 0 && d != depth || d > maxExtentDepth || 12+entries*12 > len(node) {
		return bad("header")
	}
	for k := range entries {
		e := node[12+k*12:]
		if d > 0 {
			leaf := uint64(le.Uint32(e[4:])) | uint64(le.Uint16(e[8:]))<<32
			block, err := fs.readBlock(leaf)
			if err != nil {
				return err
			}
			if err := fs.extentNode(i, block, d-1, out); err != nil {
				return err
			}
			continue
		}
		x := extent{
			logical: le.Uint32(e),
			length:  uint32(le.Uint16(e[4:])),
			start:   uint64(le.Uint32(e[8:])) | uint64(le.Uint16(e[6:]))<<32,
		}
		if x.length > maxInitialized {
			x.length -= maxInitialized
			x.unread = true
		}
		if x.length == 0 || x.start == 0 || x.start+uint64(x.length) > fs.blocks {
			return bad("outside of the image")
		}
		// In order and apart: also what keeps a looping tree from growing the
		// list without end.
		if n := len(*out); n > 0 && uint64(x.logical) < uint64((*out)[n-1].logical)+uint64((*out)[n-1].length) {
			return bad("out of order")
		}
		*out = append(*out, x)
	}
	return nil
}

// content is the data of a regular file, directory or long symbolic link.
type content struct {
	fs      *FS
	extents []extent
	size    int64
}

// Open returns the content of a regular file; holes read as zeroes.
func (fs *FS) Open(i *Inode) (*io.SectionReader, error) {
	if i.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("open inode %d: not a regular file", i.Number)
	}
	return fs.open(i)
}

func (fs *FS) open(i *Inode) (*io.SectionReader, error) {
	x, err := fs.extents(i)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(&content{fs, x, i.Size}, 0, i.Size), nil
}

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	if off >= c.size {
		return 0, io.EOF
	}
	end := false
	if rest := c.size - off; int64(len(p)) > rest {
		p, end = p[:rest], true
	}
	done := 0
	for done < len(p) {
		n, err := c.readSome(p[done:], off+int64(done))
		done += n
		if err != nil {
			return done, err
		}
	}
	if end {
		return done, io.EOF
	}
	return done, nil
}

// readSome reads up to the end of the extent or hole that off is in.
func (c *content) readSome(p []byte, off int64) (int, error) {
	bs := c.fs.blockSize
	k := sort.Search(len(c.extents), func(k int) bool {
		x := c.extents[k]
		return (int64(x.logical)+int64(x.length))*bs > off
	})
	if k == len(c.extents) { // a hole up to the end
		clear(p)
		return len(p), nil
	}
	x := c.extents[k]
	first := int64(x.logical) * bs
	if off < first {
		n := min(int64(len(p)), first-off)
		clear(p[:n])
		return int(n), nil
	}
	n := min(int64(len(p)), first+int64(x.length)*bs-off)
	if x.unread {
		clear(p[:n])
		return int(n), nil
	}
	got, err := c.fs.f.ReadAt(p[:n], int64(x.start)*bs+off-first)
	if err != nil {
		return got, fmt.Errorf("read file data: %w", err)
	}
	return got, nil
}
