// Package hosttar packs files of this host into a tar stream and unpacks one
// that a guest sent.
//
// It owns what may appear on the host because of such a stream; where it should
// go is the caller's to decide.
//
// # Invariants
//
// The stream of a guest is hostile. Whatever is in it:
//
//   - Nothing outside the destination is created, changed or followed: entries
//     that are absolute, climb with "..", or are not beneath the one that was
//     asked for end the unpacking with [ErrEscape], links that lead out of the
//     destination are made but never followed, and a file is never written
//     through a link or into a file that was there before.
//   - No device, no pipe and no set-uid or set-gid program comes to be; each is
//     told to the caller's Remark.
//
// Owners are kept when this process is root, modes always.
//
// # Concurrency
//
// Functions keep no state; the destination must not be changed by others
// meanwhile if the result is to be the stream's.
package hosttar
