package ext4

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature words of every image.
const (
	compatExtAttr, compatSparseSuper2 = 0x8, 0x200

	roCompatLargeFile, roCompatHugeFile  = 0x2, 0x8
	roCompatDirNlink, roCompatExtraIsize = 0x20, 0x40

	groupInodeZeroed = 0x4
)

// finish writes what could not be known before: bitmaps, group descriptors and
// the superblock.
func (w *writer) finish() error {
	inodes := lastInode(w.nodes)
	w.size(inodes)
	bitmaps := w.alloc(2 * w.groups)
	tableBlocks := w.groups * uint64(w.perGrp) / inodesPerBlock
	descBlocks := (w.groups*descriptorSize + blockSize - 1) / blockSize
	if descBlocks >= w.tables || w.tables+tableBlocks > w.data || w.next > w.total {
		return fmt.Errorf("%w: layout of %d groups", ErrCorrupt, w.groups) // newWriter reserved too little
	}
	used := [][2]uint64{
		{0, 1 + descBlocks}, {w.tables, w.tables + tableBlocks}, {w.data, w.next},
	}
	if err := w.f.Truncate(int64(w.total) * blockSize); err != nil {
		return err
	}
	dirs := make([]uint32, w.groups)
	for _, n := range w.nodes {
		if n.mode&unix.S_IFMT == unix.S_IFDIR {
			dirs[(n.number-1)/w.perGrp]++
		}
	}
	descs := make([]byte, descBlocks*blockSize)
	le := binary.LittleEndian
	freeBlocks, freeInodes := uint64(0), uint64(0)
	for g := range w.groups {
		blockMap, free := w.blockBitmap(g, used)
		inodeMap, freeHere := w.inodeBitmap(g, inodes)
		freeBlocks += uint64(free)
		freeInodes += uint64(freeHere)
		if err := w.writeBlocks(bitmaps+g, blockMap); err != nil {
			return err
		}
		if err := w.writeBlocks(bitmaps+w.groups+g, inodeMap); err != nil {
			return err
		}
		table := w.tables + g*uint64(w.perGrp)/inodesPerBlock
		d := descs[g*descriptorSize : (g+1)*descriptorSize]
		put64 := func(lo, hi int, v uint64) {
			le.PutUint32(d[lo:], uint32(v))
			le.PutUint32(d[hi:], uint32(v>>32))
		}
		put32 := func(lo, hi int, v uint32) {
			le.PutUint16(d[lo:], uint16(v))
			le.PutUint16(d[hi:], uint16(v>>16))
		}
		put64(0x0, 0x20, bitmaps+g)
		put64(0x4, 0x24, bitmaps+w.groups+g)
		put64(0x8, 0x28, table)
		put32(0xC, 0x2C, free)
		put32(0xE, 0x2E, freeHere)
		put32(0x10, 0x30, dirs[g])
		le.PutUint16(d[0x12:], groupInodeZeroed)
		put32(0x18, 0x38, crc32c(w.seed, blockMap))
		put32(0x1A, 0x3A, crc32c(w.seed, inodeMap[:w.perGrp/8]))
		put32(0x1C, 0x32, freeHere) // all free inodes are at the end of the table
		sum := crc32c(crc32c(w.seed, le.AppendUint32(nil, uint32(g))), d)
		le.PutUint16(d[0x1E:], uint16(sum))
	}
	if err := w.writeBlocks(1, descs); err != nil {
		return err
	}
	_, err := w.f.WriteAt(w.superblock(freeBlocks, freeInodes), superblockOffset)
	return err
}

// size decides how many groups there are: enough for the blocks, with the two
// bitmaps of each group, and for the inodes, of which a group takes only so many.
func (w *writer) size(inodes uint64) {
	w.groups = 1
	for {
		w.total = (w.next + 2*w.groups + sizeStep - 1) / sizeStep * sizeStep
		if least := max((inodes+maxInodesGroup-1)/maxInodesGroup, w.opts.leastGroups); least > 1 {
			w.total = max(w.total, (least-1)*blocksPerGroup+sizeStep)
		}
		groups := (w.total + blocksPerGroup - 1) / blocksPerGroup
		if groups == w.groups {
			break
		}
		w.groups = groups
	}
	each := (inodes + w.groups - 1) / w.groups
	w.perGrp = uint32((each + inodesPerBlock - 1) / inodesPerBlock * inodesPerBlock)
}

// blockBitmap marks the used blocks of a group, and what is beyond the end.
func (w *writer) blockBitmap(g uint64, used [][2]uint64) (bits []byte, free uint32) {
	bits = make([]byte, blockSize)
	base := g * blocksPerGroup
	here := min(w.total-base, blocksPerGroup)
	for _, r := range used {
		for b := max(r[0], base); b < min(r[1], base+here); b++ {
			bits[(b-base)/8] |= 1 << ((b - base) % 8)
		}
	}
	for b := range here {
		if bits[b/8]&(1<<(b%8)) == 0 {
			free++
		}
	}
	for b := here; b < blocksPerGroup; b++ {
		bits[b/8] |= 1 << (b % 8)
	}
	return bits, free
}

// inodeBitmap does the same with inodes, which are used from the first one on.
func (w *writer) inodeBitmap(g, inodes uint64) (bits []byte, free uint32) {
	bits = make([]byte, blockSize)
	per := uint64(w.perGrp)
	for i := range uint64(maxInodesGroup) {
		if i >= per || g*per+i < inodes {
			bits[i/8] |= 1 << (i % 8)
		} else {
			free++
		}
	}
	return bits, free
}

func (w *writer) superblock(freeBlocks, freeInodes uint64) []byte {
	sb := make([]byte, superblockSize)
	le := binary.LittleEndian
	now := uint32(w.opts.Time.Unix())
	for off, v := range map[int]uint32{
		0x0: uint32(w.groups) * w.perGrp, 0x4: uint32(w.total), 0xC: uint32(freeBlocks), 0x10: uint32(freeInodes),
		0x18: 2, 0x1C: 2, // block size 1024 << 2
		0x20: blocksPerGroup, 0x24: blocksPerGroup, 0x28: w.perGrp,
		0x30: now, 0x40: now, // written, checked
		0x4C:  1, // revision with the fields below
		0x54:  firstFree,
		0x5C:  compatExtAttr | compatSparseSuper2,
		0x60:  incompatFiletype | incompatExtents | incompat64Bit | incompatFlexBG,
		0x64:  roCompatLargeFile | roCompatHugeFile | roCompatDirNlink | roCompatExtraIsize | roCompatMetadataSum,
		0x100: 0xC, // mount with attributes and access control lists
		0x108: now, // made
		0x150: uint32(w.total >> 32), 0x158: uint32(freeBlocks >> 32),
		0x160: 0x2, // hashes of unsigned characters
	} {
		le.PutUint32(sb[off:], v)
	}
	for off, v := range map[int]uint16{
		0x36: 0xFFFF,                  // no check after so many mounts
		0x38: magic, 0x3A: 1, 0x3C: 1, // clean; go on after errors
		0x58: inodeSize, 0xFE: descriptorSize, 0x15C: extraInodeBytes, 0x15E: extraInodeBytes,
	} {
		le.PutUint16(sb[off:], v)
	}
	copy(sb[0x68:], w.opts.UUID[:])
	copy(sb[0x78:0x88], w.opts.Label)
	copy(sb[0xEC:], w.opts.UUID[:]) // seed of directory hashes
	sb[0xFC] = 1                    // their version
	sb[0x174] = 4                   // 16 groups to a flexible one
	sb[0x175] = 1                   // checksums are CRC-32C
	le.PutUint32(sb[0x3FC:], crc32c(^uint32(0), sb[:0x3FC]))
	return sb
}
