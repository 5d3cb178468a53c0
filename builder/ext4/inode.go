package ext4

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	flagIndex      = 0x1000
	flagExtents    = 0x80000
	flagEAInode    = 0x200000
	flagInlineData = 0x10000000
	flagEncrypt    = 0x800

	// Offsets in the inode.
	offMode, offUID, offUIDHi, offGID, offGIDHi = 0x0, 0x2, 0x78, 0x18, 0x7A
	offAtime, offCtime, offMtime                = 0x8, 0xC, 0x10
	offExtraSize, offChecksumHi                 = 0x80, 0x82
	offCtimeExtra, offMtimeExtra, offAtimeExtra = 0x84, 0x88, 0x8C
	offCrtime, offCrtimeExtra                   = 0x90, 0x94
	offChecksumLo                               = 0x7C
)

// Inode is one file of whatever kind.
type Inode struct {
	Number uint32
	Mode   uint32 // as st_mode
	UID    uint32
	GID    uint32
	Links  uint32
	Size   int64
	Rdev   uint64 // devices only, as st_rdev
	Atime  time.Time
	Ctime  time.Time
	Mtime  time.Time

	raw []byte
}

// Inode reads inode n.
func (fs *FS) Inode(n uint32) (*Inode, error) {
	off, err := fs.inodeOffset(n)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, fs.inodeSize)
	if _, err := fs.f.ReadAt(raw, off); err != nil {
		return nil, fmt.Errorf("read inode %d: %w", n, err)
	}
	le := binary.LittleEndian
	i := &Inode{
		Number: n,
		Mode:   uint32(le.Uint16(raw[offMode:])),
		UID:    uint32(le.Uint16(raw[offUID:])) | uint32(le.Uint16(raw[offUIDHi:]))<<16,
		GID:    uint32(le.Uint16(raw[offGID:])) | uint32(le.Uint16(raw[offGIDHi:]))<<16,
		Links:  uint32(le.Uint16(raw[0x1A:])),
		Size:   int64(uint64(le.Uint32(raw[0x4:])) | uint64(le.Uint32(raw[0x6C:]))<<32),
		raw:    raw,
	}
	if i.Size < 0 {
		return nil, fmt.Errorf("%w: inode %d has a negative size", ErrCorrupt, n)
	}
	i.Atime = i.time(offAtime, offAtimeExtra)
	i.Ctime = i.time(offCtime, offCtimeExtra)
	i.Mtime = i.time(offMtime, offMtimeExtra)
	if k := i.Mode & unix.S_IFMT; k == unix.S_IFBLK || k == unix.S_IFCHR {
		i.Rdev = deviceNumber(le.Uint32(raw[0x28:]), le.Uint32(raw[0x2C:]))
	}
	return i, nil
}

// deviceNumber decodes the two forms a device inode may use.
func deviceNumber(old, new uint32) uint64 {
	if old != 0 {
		return unix.Mkdev((old>>8)&0xFF, old&0xFF)
	}
	return unix.Mkdev((new>>8)&0xFFF, new&0xFF|(new>>12)&0xFFF00)
}

func (fs *FS) inodeOffset(n uint32) (int64, error) {
	if n == 0 || n > fs.inodes {
		return 0, fmt.Errorf("%w: inode %d of %d", ErrCorrupt, n, fs.inodes)
	}
	table := fs.inodeTables[(n-1)/fs.inodesPerGroup]
	if table == 0 || table >= fs.blocks {
		return 0, fmt.Errorf("%w: inode table at block %d", ErrCorrupt, table)
	}
	return int64(table)*fs.blockSize + int64((n-1)%fs.inodesPerGroup)*fs.inodeSize, nil
}

func (i *Inode) flags() uint32 { return binary.LittleEndian.Uint32(i.raw[0x20:]) }

// IsDir reports whether the inode is a directory.
func (i *Inode) IsDir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

// hasField reports whether the inode is large enough for a field ending at end.
func (i *Inode) hasField(end int) bool {
	if len(i.raw) < offExtraSize+2 || end > len(i.raw) {
		return false
	}
	return end <= 128+int(binary.LittleEndian.Uint16(i.raw[offExtraSize:]))
}

// time joins the signed 32-bit seconds with the two epoch bits and the
// nanoseconds of the extra field.
func (i *Inode) time(off, extraOff int) time.Time {
	le := binary.LittleEndian
	sec, nsec := int64(int32(le.Uint32(i.raw[off:]))), int64(0)
	if i.hasField(extraOff + 4) {
		extra := le.Uint32(i.raw[extraOff:])
		sec += int64(extra&3) << 32
		nsec = int64(extra >> 2)
	}
	return time.Unix(sec, nsec)
}

func (i *Inode) setTime(off, extraOff int, t time.Time) {
	le := binary.LittleEndian
	sec := t.Unix()
	// What does not fit is cut to the nearest instant that does.
	const first, last = -1 << 31, 1<<34 - 1<<31 - 1
	sec = min(max(sec, first), last)
	epoch := (sec - int64(int32(sec))) >> 32
	le.PutUint32(i.raw[off:], uint32(sec))
	le.PutUint32(i.raw[extraOff:], uint32(t.Nanosecond())<<2|uint32(epoch)&3)
}

// inodeSeed is what the checksums of an inode and its blocks start from. The
// generation is zero in our images.
func inodeSeed(seed, number uint32) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], number)
	return crc32c(seed, b[:])
}

// signInode sets the checksum of an inode of generation zero, which covers its
// number and everything in it but the checksum.
func signInode(seed uint32, i *Inode) {
	le := binary.LittleEndian
	le.PutUint16(i.raw[offChecksumLo:], 0)
	le.PutUint16(i.raw[offChecksumHi:], 0)
	sum := crc32c(inodeSeed(seed, i.Number), i.raw)
	le.PutUint16(i.raw[offChecksumLo:], uint16(sum))
	le.PutUint16(i.raw[offChecksumHi:], uint16(sum>>16))
}
