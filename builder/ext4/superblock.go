package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Errors of this package.
var (
	// ErrCorrupt: the image contradicts itself or is not ext4.
	ErrCorrupt = errors.New("damaged ext4 image")
	// ErrUnsupported: a feature of ext4 that this package cannot read.
	ErrUnsupported = errors.New("unsupported ext4 feature")
)

const (
	superblockOffset = 1024
	superblockSize   = 1024
	magic            = 0xEF53
	// RootInode is the number of the root directory's inode.
	RootInode = 2

	incompatFiletype    = 0x2
	incompatExtents     = 0x40
	incompat64Bit       = 0x80
	incompatFlexBG      = 0x200
	incompatCsumSeed    = 0x2000
	incompatLargeDir    = 0x4000
	incompatUnderstood  = incompatFiletype | incompatExtents | incompat64Bit | incompatFlexBG | incompatCsumSeed | incompatLargeDir
	roCompatMetadataSum = 0x400
)

// FS is one ext4 image.
type FS struct {
	f io.ReaderAt

	blockSize      int64
	blocks         uint64
	inodes         uint32
	inodesPerGroup uint32
	inodeSize      int64
	descSize       int64
	firstDataBlock uint32

	inodeTables []uint64 // first block of each group's inode table
}

// Open reads the superblock and the group descriptors of the image in f. f
// stays the caller's.
func Open(f io.ReaderAt) (*FS, error) {
	sb := make([]byte, superblockSize)
	if _, err := f.ReadAt(sb, superblockOffset); err != nil {
		return nil, fmt.Errorf("read superblock: %w", err)
	}
	le := binary.LittleEndian
	if le.Uint16(sb[0x38:]) != magic {
		return nil, fmt.Errorf("%w: no ext4 superblock", ErrCorrupt)
	}
	incompat := le.Uint32(sb[0x60:])
	if rest := incompat &^ incompatUnderstood; rest != 0 {
		return nil, fmt.Errorf("%w: incompatible features %#x", ErrUnsupported, rest)
	}
	logBlock := le.Uint32(sb[0x18:])
	if logBlock > 6 {
		return nil, fmt.Errorf("%w: block size", ErrCorrupt)
	}
	fs := &FS{
		f:              f,
		blockSize:      1024 << logBlock,
		blocks:         uint64(le.Uint32(sb[0x4:])),
		inodes:         le.Uint32(sb[0x0:]),
		inodesPerGroup: le.Uint32(sb[0x28:]),
		inodeSize:      int64(le.Uint16(sb[0x58:])),
		descSize:       32,
		firstDataBlock: le.Uint32(sb[0x14:]),
	}
	if incompat&incompat64Bit != 0 {
		fs.blocks |= uint64(le.Uint32(sb[0x150:])) << 32
		fs.descSize = int64(le.Uint16(sb[0xFE:]))
	}
	perGroup := le.Uint32(sb[0x20:])
	switch {
	case fs.inodeSize < 128 || fs.inodeSize > fs.blockSize || fs.inodeSize&(fs.inodeSize-1) != 0:
		return nil, fmt.Errorf("%w: inode size %d", ErrCorrupt, fs.inodeSize)
	case fs.descSize < 32 || fs.descSize > 1024:
		return nil, fmt.Errorf("%w: group descriptor size %d", ErrCorrupt, fs.descSize)
	case fs.inodesPerGroup == 0 || perGroup == 0 || uint64(fs.firstDataBlock) >= fs.blocks:
		return nil, fmt.Errorf("%w: geometry", ErrCorrupt)
	}
	return fs, fs.readGroups(perGroup)
}

func (fs *FS) readGroups(perGroup uint32) error {
	groups := (fs.blocks - uint64(fs.firstDataBlock) + uint64(perGroup) - 1) / uint64(perGroup)
	if groups > 1<<24 || groups*uint64(fs.inodesPerGroup) < uint64(fs.inodes) {
		return fmt.Errorf("%w: %d block groups", ErrCorrupt, groups)
	}
	le := binary.LittleEndian
	base := (int64(fs.firstDataBlock) + 1) * fs.blockSize
	// In pieces, so that an absurd number of groups ends at the end of the file
	// instead of in a huge allocation.
	const piece = 4096
	buf := make([]byte, piece*fs.descSize)
	for done := uint64(0); done < groups; {
		n := min(groups-done, piece)
		part := buf[:int64(n)*fs.descSize]
		if _, err := fs.f.ReadAt(part, base+int64(done)*fs.descSize); err != nil {
			return fmt.Errorf("read group descriptors: %w", err)
		}
		for i := range n {
			d := part[int64(i)*fs.descSize:]
			table := uint64(le.Uint32(d[0x8:]))
			if fs.descSize >= 64 {
				table |= uint64(le.Uint32(d[0x28:])) << 32
			}
			fs.inodeTables = append(fs.inodeTables, table)
		}
		done += n
	}
	return nil
}

// readBlock reads one whole block.
func (fs *FS) readBlock(n uint64) ([]byte, error) {
	if n == 0 || n >= fs.blocks {
		return nil, fmt.Errorf("%w: block %d of %d", ErrCorrupt, n, fs.blocks)
	}
	b := make([]byte, fs.blockSize)
	if _, err := fs.f.ReadAt(b, int64(n)*fs.blockSize); err != nil {
		return nil, fmt.Errorf("read block %d: %w", n, err)
	}
	return b, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c is the checksum as ext4 uses it: the caller brings the initial value
// and neither it nor the result is inverted.
func crc32c(crc uint32, p []byte) uint32 {
	return ^crc32.Update(^crc, castagnoli, p)
}
