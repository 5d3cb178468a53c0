// Package process holds on to VMM processes.
//
// It owns how a process is found again (pid, start time and boot id of a
// vmm.Handle), how its end is noticed and explained, how it is killed, and how
// one is started in a network namespace. It leaves to the drivers what is
// started and how it is talked to.
//
// # Invariants
//
//   - A process is held by a pidfd: a reused pid is never signalled.
//   - A child of this program is waited for once, by a goroutine that ends with
//     the child, and is reaped even when nobody holds it any more.
//
// # Concurrency
//
// Everything is safe for concurrent use.
package process
