// Package qemu drives QEMU: its microvm machine with direct kernel boot, guest
// RAM as a private mapping, and device state saved and loaded without RAM.
//
// It owns the command line, the QMP connection, the choice between KVM and TCG,
// and what is needed to find a machine again (machine.json in the run
// directory). It leaves to others what is in the guest, the network around the
// tap, copying of RAM (package guestmem) and the durability of what SaveDevices
// writes.
//
// # Invariants
//
//   - The memory file is mapped privately; with QEMU 8.2 or newer it is also
//     opened read-only.
//   - The same Spec gives the same devices in the same order, so that saved
//     state can be loaded. machine.json beside the saved state says which
//     devices it was, and Launch refuses others.
//   - QEMU opens every file before it gives up its privileges and lives in an
//     empty root directory afterwards (with Spec.Jail). Files needed later are
//     handed over the QMP socket. Landlock, where the kernel has it, holds it to
//     those files and its own installation from the start.
//   - One failed step of a launch leaves no process.
//
// # Concurrency
//
// Driver and machines are safe for concurrent use. QEMU serves one QMP
// connection at a time; a machine keeps one for a tenth of a second after each
// operation, so that processes sharing it wait for each other no longer.
// Every process started here is waited for by a goroutine that ends with it.
package qemu
