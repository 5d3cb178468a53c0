// Package cloudhypervisor drives cloud-hypervisor, version 53 and newer: direct
// kernel boot, everything virtio on PCI, guest RAM as a private mapping, and
// device state saved and loaded without RAM. It needs KVM.
//
// It owns the HTTP connection to a VMM, what is in the configuration and state
// it saves, the jail it lives in, and what is needed to find a machine again
// (machine.json in the run directory). It leaves to others what is in the guest,
// the network around the tap, copying of RAM (package guestmem), the choice of
// VMM, and the durability of what SaveDevices writes.
//
// # Saved state
//
// SaveDevices has cloud-hypervisor write a snapshot where it finds a file in the
// place of its RAM dump. It refuses to overwrite that, after configuration and
// state are complete: both are checked down to the last device before they are
// kept, and a version that does otherwise is given room for its dump. In what is
// kept the list of RAM to be read is empty and no path of this host is left.
// Launch writes the paths of the new machine into a copy; loading it maps the
// memory file privately and reads nothing of it.
//
// # Invariants
//
//   - The memory file is mapped privately and opened read-only.
//   - The same Spec gives the same devices in the same order, all with ids of
//     their own: they are the keys into saved state. machine.json beside the
//     saved state says which devices it was, and Launch refuses others.
//   - Taps are handed over as open descriptors, so the VMM needs no capability
//     and no name in its network namespace.
//   - Logs are appended to, although cloud-hypervisor truncates files that it
//     opens: see console.go.
//   - A guest that restarts ends its machine, cleanly.
//   - One failed step of a launch leaves no process.
//   - A restored guest's monotonic clock goes on from where its state was saved. One
//     that was paused and goes on in place has counted the pause: from v53 on
//     cloud-hypervisor sets the clock forward itself.
//
// # Jail
//
// With Spec.Jail the VMM is started as its user, without any capability and
// unable to gain one, in mount and IPC namespaces of its own whose root holds
// the files of its Spec under their own paths, /dev/kvm, /dev/null and
// /dev/urandom, and for a program that is not static the host's libraries. Files
// belong to its user there, and memory file, kernel and read-only disks are on
// read-only mounts. That takes root, and a file system with id-mapped mounts
// (ext4 and xfs since Linux 5.12, btrfs 5.15, tmpfs 6.3) for files that the user may
// not open by their mode. States pass through the directory "vmm" in the run
// directory, which belongs to the VMM's user and is not trusted. Landlock, where
// the kernel has it, says the same once more; it is put on by us before the VMM
// starts and not by its own --landlock, which comes after it has read its
// configuration. cloud-hypervisor's
// own seccomp filters, of all threads but the first, are on with and without a
// jail.
//
// # Concurrency
//
// Driver and machines are safe for concurrent use. cloud-hypervisor answers one
// request after the other, so machines shared by several processes wait for
// each other no longer than an operation takes. Every process started here is
// waited for by a goroutine that ends with it.
package cloudhypervisor
