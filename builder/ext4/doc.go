// Package ext4 reads ext4 file systems out of plain files, without mounting
// them, and corrects the attributes of their inodes.
//
// It owns the on-disk format as far as mkfs.ext4 writes it: extents, directory
// blocks, extended attributes in the inode and in a block, 64-bit group
// descriptors, metadata checksums. Making a file system is left to mkfs.ext4.
// What it does not know (inline data, large-xattr inodes, encryption, block
// maps) it refuses with [ErrUnsupported] rather than guessing.
//
// # Invariants
//
//   - Reading never trusts an offset or a length of the image: damaged images
//     give [ErrCorrupt], never a panic or an endless loop.
//   - Only [FS.SetAttr] writes, only into inode table blocks, and it renews the
//     checksum of the inode it changes.
//
// # Concurrency
//
// Reading is safe for concurrent use; SetAttr is not safe beside anything on
// the same FS.
//
// The format is described in the kernel's Documentation/filesystems/ext4.
package ext4
