// Package guestboot provides what a machine boots from: a guest kernel and the
// initramfs that goes with it.
//
// It owns the directory it is given (DATA/kernel): kernels by digest, with the
// modules a guest may need, and base initramfs files by digest. The kernel is a
// distribution's own, taken from the package mirror the host's apt is
// configured with, so apt checks signature and checksum. The guest init is
// handed in as bytes; what it does in the guest is not known here.
//
// # Invariants
//
//   - A file named by a digest holds exactly those bytes, is never rewritten
//     and never removed here: commits with memory refer to it.
//   - The host's package state is neither needed nor changed.
//   - The records that do change (which kernel is current, the host's clock,
//     the modules of a kernel that is kept anew) are replaced atomically.
//
// # Concurrency
//
// [Ensure] may run in several processes at once; an exclusive flock makes one
// of them do the work and the others find it done. Everything else only reads.
package guestboot
