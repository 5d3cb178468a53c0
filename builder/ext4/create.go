package ext4

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Options of [Create].
type Options struct {
	// UUID of the file system. It seeds the checksums, so that equal trees give
	// equal images only with equal UUIDs.
	UUID [16]byte
	// Label is the volume name, 16 bytes at most.
	Label string
	// Time is that of the making of the file system and of every inode's birth.
	Time time.Time
	// RootTime, when not zero, is the modification time of the root directory
	// instead of that of its source.
	RootTime time.Time

	leastGroups uint64 // for tests: as if there were more content
}

// Stats say what an image holds.
type Stats struct {
	Inodes int64
	// ContentBytes is the data of its files and the targets of its links: holes
	// count nothing, a file with several names counts once.
	ContentBytes int64
	SizeBytes    int64 // of the image
}

// Geometry of every image.
const (
	blockSize       = 4096
	inodeSize       = 256
	inodesPerBlock  = blockSize / inodeSize
	blocksPerGroup  = 8 * blockSize
	descriptorSize  = 64
	maxInodesGroup  = 8 * blockSize
	extraInodeBytes = 32 // of an inode's own fields beyond the first 128
	sizeStep        = 256
)

// Create writes an ext4 file system with the tree below dir into f, a new, empty
// file. Everything of the tree is kept: modes, owners, times to the nanosecond,
// links, devices, extended attributes. Blocks of zeroes become holes.
//
// The image depends on the tree and the options alone, not on the host, the
// clock or the order in which dir is listed: equal trees give equal bytes. It is
// to be mounted read-only: it has no journal, no spare inodes and no backup of
// its superblock.
//
// The layout is: superblock, group descriptors, inode tables, then the contents
// in the order of inodes, and the bitmaps at the end, when it is known how many
// groups there are. f grows as it is written; what is not written stays a hole.
func Create(ctx context.Context, f *os.File, dir string, o Options) (Stats, error) {
	nodes, err := scan(ctx, dir)
	if err != nil {
		return Stats{}, err
	}
	if !o.RootTime.IsZero() {
		nodes[0].mtime = o.RootTime
	}
	w := newWriter(f, dir, nodes, o)
	for _, n := range nodes {
		if err := ctx.Err(); err != nil {
			return Stats{}, err
		}
		if err := w.node(ctx, n); err != nil {
			return Stats{}, fmt.Errorf("write %s: %w", n.path, err)
		}
	}
	if err := w.finish(); err != nil {
		return Stats{}, err
	}
	return Stats{Inodes: int64(len(nodes)), ContentBytes: w.content, SizeBytes: int64(w.total) * blockSize}, nil
}

// writer writes one image from front to back.
type writer struct {
	f       *os.File
	dir     string
	nodes   []*node
	opts    Options
	seed    uint32 // of all checksums
	content int64

	tables uint64 // first block of the inode tables
	data   uint64 // first block of the contents
	next   uint64 // next free block
	total  uint64 // blocks of the image
	groups uint64
	perGrp uint32 // inodes of a group

	buf []byte
}

// newWriter reserves the front of the image. How many groups there will be is
// not known yet, but how many there can be at most is: what is reserved in vain
// stays free, and a hole.
func newWriter(f *os.File, dir string, nodes []*node, o Options) *writer {
	w := &writer{f: f, dir: dir, nodes: nodes, opts: o, seed: crc32c(^uint32(0), o.UUID[:]), buf: make([]byte, 1<<20)}
	most := uint64(1)
	for _, n := range nodes {
		// Contents, their maps (a block for 340 extents), attributes, names.
		most += uint64(n.size)/blockSize + uint64(n.size)/blockSize/300 + 8
		for _, e := range n.names {
			most += uint64(len(e.name)+12)/64 + 1
		}
	}
	inodes := lastInode(nodes)
	most += inodes/inodesPerBlock + 1
	groups := max(most+most/64+blocksPerGroup, inodes+maxInodesGroup)/blocksPerGroup + 2 + o.leastGroups
	w.tables = 1 + (groups*descriptorSize+blockSize-1)/blockSize
	// Every group rounds its table up to a block.
	w.data = w.tables + inodes/inodesPerBlock + 1 + groups
	w.next = w.data
	return w
}

// lastInode is the highest number in use; those below firstFree always are.
func lastInode(nodes []*node) uint64 { return firstFree - 1 + uint64(len(nodes)) - 1 }

// alloc takes the next n blocks.
func (w *writer) alloc(n uint64) uint64 {
	first := w.next
	w.next += n
	return first
}

func (w *writer) writeBlocks(first uint64, p []byte) error {
	_, err := w.f.WriteAt(p, int64(first)*blockSize)
	return err
}

// node writes the content and the inode of n.
func (w *writer) node(ctx context.Context, n *node) error {
	raw := make([]byte, inodeSize)
	le := binary.LittleEndian
	flags := uint32(0)
	var err error
	switch n.mode & unix.S_IFMT {
	case unix.S_IFREG:
		flags = flagExtents
		var x []extent
		if x, err = w.file(ctx, n); err == nil {
			err = w.extentTree(n, raw[0x28:0x28+60], x)
		}
	case unix.S_IFDIR:
		flags = flagExtents
		var x []extent
		if x, err = w.directory(n); err == nil {
			err = w.extentTree(n, raw[0x28:0x28+60], x)
		}
	case unix.S_IFLNK:
		w.content += n.size
		if len(n.link) < 60 {
			copy(raw[0x28:], n.link)
			break
		}
		flags = flagExtents
		b := make([]byte, blockSize)
		if copy(b, n.link) == blockSize {
			return fmt.Errorf("%w: target of %d bytes", ErrUnsupported, len(n.link))
		}
		x := []extent{{logical: 0, length: 1, start: w.alloc(1)}}
		n.blocks++
		if err = w.writeBlocks(x[0].start, b); err == nil {
			err = w.extentTree(n, raw[0x28:0x28+60], x)
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		major, minor := unix.Major(n.rdev), unix.Minor(n.rdev)
		if major < 256 && minor < 256 {
			le.PutUint32(raw[0x28:], major<<8|minor)
		} else {
			le.PutUint32(raw[0x2C:], minor&0xFF|major<<8|(minor&^0xFF)<<12)
		}
	}
	if err != nil {
		return err
	}
	if err := w.attributes(n, raw); err != nil {
		return err
	}
	return w.inode(n, raw, flags)
}

// inode completes an inode and puts it into its table.
func (w *writer) inode(n *node, raw []byte, flags uint32) error {
	le := binary.LittleEndian
	le.PutUint16(raw[offMode:], uint16(n.mode))
	le.PutUint16(raw[offUID:], uint16(n.uid))
	le.PutUint16(raw[offUIDHi:], uint16(n.uid>>16))
	le.PutUint16(raw[offGID:], uint16(n.gid))
	le.PutUint16(raw[offGIDHi:], uint16(n.gid>>16))
	le.PutUint32(raw[0x4:], uint32(n.size))
	le.PutUint32(raw[0x6C:], uint32(n.size>>32))
	links := n.links
	if links > maxLinks {
		if n.mode&unix.S_IFMT != unix.S_IFDIR {
			return fmt.Errorf("%w: %d names", ErrUnsupported, links)
		}
		links = 1 // how a directory says that it lost count
	}
	le.PutUint16(raw[0x1A:], uint16(links))
	sectors := uint64(n.blocks) * (blockSize / 512)
	le.PutUint32(raw[0x1C:], uint32(sectors))
	le.PutUint16(raw[0x74:], uint16(sectors>>32))
	le.PutUint32(raw[0x20:], flags)
	le.PutUint16(raw[offExtraSize:], extraInodeBytes)
	i := &Inode{Number: n.number, raw: raw}
	i.setTime(offAtime, offAtimeExtra, n.mtime)
	i.setTime(offCtime, offCtimeExtra, n.mtime)
	i.setTime(offMtime, offMtimeExtra, n.mtime)
	i.setTime(offCrtime, offCrtimeExtra, w.opts.Time)
	signInode(w.seed, i)
	_, err := w.f.WriteAt(raw, int64(w.tables)*blockSize+int64(n.number-1)*inodeSize)
	return err
}

// maxLinks is what an inode can count.
const maxLinks = 65000
