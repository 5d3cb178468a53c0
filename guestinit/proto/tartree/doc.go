// Package tartree turns a file or a directory tree into a tar stream and back.
//
// It owns what both ends of a copy between host and guest have in common: what
// of a file's metadata is kept, where the entries of a stream go by the rules
// of docker cp, and that they go nowhere else. How a stream gets from one end
// to the other is not its business.
//
// Pack keeps names, contents, numeric owners, modes with setuid, setgid and
// sticky bits, modification times to the second, symbolic and hard links,
// device nodes, FIFOs and extended attributes. Sockets are left out, as are the
// contents of kernel file systems (proc, sysfs and the like) below the root of
// the copy. A file that changes meanwhile is cut or filled with zeroes to the
// size it had.
//
// Unpack makes each file under a temporary name and renames it, so that what
// was there before is replaced whole or not at all. Blocks of zeroes become
// holes. Names are resolved beneath the destination by the kernel (openat2), so
// neither "..", nor absolute names, nor a link that the stream itself brought
// leads out of it, whoever changes the tree meanwhile. [UnpackOptions.Trusted]
// is for a stream that may do what its reader may: the other direction, files
// of a guest on the host, makes no device node, drops setuid and setgid bits
// and takes user attributes only.
//
// Memory does not grow with sizes or the number of files, with one exception:
// Pack remembers inodes that have several names. Nothing here is safe for
// concurrent use by several goroutines, and nothing is shared between calls.
package tartree
