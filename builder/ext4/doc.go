// Package ext4 makes ext4 images of directory trees and reads them again,
// without mounting anything.
//
// It owns the on-disk format as far as read-only images need it. Writable file
// systems are left to mkfs.ext4. The reader also understands what mkfs.ext4 and
// the kernel write: block groups with their own metadata, hash-indexed
// directories, 32-byte descriptors. What it does not know (inline data,
// large-attribute inodes, encryption, block maps) it refuses with
// [ErrUnsupported] rather than guessing.
//
// mkfs.ext4 can fill a file system from a directory too. Images are not made
// with it because what it writes depends on the order in which the host's file
// system lists names, so that no two hosts would agree on the digest of an
// image; because it cuts times to seconds and to 32 bits; and because releases
// before 1.47.1 take time that grows with the square of a directory's size.
//
// # Invariants
//
//   - [Create] writes the same bytes for the same tree and options on every host.
//   - Reading never trusts an offset or a length of the image: damaged images
//     give [ErrCorrupt], never a panic or an endless loop.
//
// # Concurrency
//
// An [FS] is safe for concurrent use.
//
// The format is described in the kernel's Documentation/filesystems/ext4.
package ext4
