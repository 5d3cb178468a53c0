// Package process holds on to VMM processes.
//
// It owns how a process is found again (pid, start time and boot id of a
// vmm.Handle), how its end is noticed and explained, how it is killed, and how
// one is started: in a network namespace, in control groups, without a core, with
// the system calls denied that no VMM needs, and where the kernel has Landlock
// with no more files than it needs. It leaves to
// the drivers what is started, as which user, with which files and root
// directory, and how it is talked to.
//
// # Invariants
//
//   - A process is held by a pidfd: a reused pid is never signalled.
//   - What Landlock restricts depends on the kernel, and may be nothing; that a
//     rule could not be applied is an error.
//   - What is changed of a thread to start a jailed VMM ends with that thread.
//   - A child of this program is waited for once, by a goroutine that ends with
//     the child, and is reaped even when nobody holds it any more.
//
// # Concurrency
//
// Everything is safe for concurrent use.
package process
