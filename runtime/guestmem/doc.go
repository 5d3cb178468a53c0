// Package guestmem finds and copies what a guest changed in its RAM by looking
// at the VMM process from outside.
//
// It owns the dirty set: which 4 KiB pages of a VMM's private mapping of a
// memory file differ from that file ([Memory.Written]), which were written
// since an earlier point in time ([Tracker]), and their contents
// ([Memory.Copy]). It leaves to others when to pause a machine, what a commit
// is, and where pages are stored; it knows no VMM by name.
//
// # Page numbers
//
// A page is named by its offset in the memory file divided by [PageBytes]. A
// VMM may map the file in several pieces; that is invisible here.
//
// # Tracking across commits and processes
//
// A machine that goes on running keeps its first mapping, so "written since the
// mapping was made" only grows. A [Tracker] answers "written since the last
// Collect" instead, which makes a commit cost what changed and allows
// pre-copying: Collect and Copy while the guest runs, pause, Collect again,
// Copy the few pages of the second set, resume.
//
// What Collect returned is gone from the kernel, so a result that never became
// part of a durable commit must come back: [Tracker.Return] inside one process,
// and [State.Unsure] across a crash. The rule for a caller that keeps State in
// a file:
//
//  1. save State().Unsure() before the first Collect of a commit;
//  2. Collect, Copy, make the commit durable;
//  3. save State().
//
// A process that dies between 1 and 3 leaves an unsure state, and the first
// Collect after [Memory.Resume] then reports everything that may differ from
// the last durable commit.
//
// # Invariants
//
//   - A set reported by Collect is never too small. It may be too large.
//   - Nothing here changes what the guest computes. The uffd-wp tracker adds
//     one descriptor to the VMM process and write-protects pages, which costs
//     the guest one page fault per page written after a Collect.
//   - Every read is tied to the address space that Open found: a reused pid is
//     noticed, never read.
//
// # Concurrency
//
// A Memory may be used from several goroutines. A Tracker may not, and one
// process at a time tracks a VMM; the caller's sandbox lock sees to that.
package guestmem
