// Package boot takes a guest from the kernel's first process to a root file
// system in which the image's programs find what they expect.
//
// It owns the steps that happen once, in this order: kernel file systems,
// modules for the devices that are there, disks, the overlay of the read-only
// image and the writable layer, the switch to it, what a running system has
// mounted, names (hosts, resolv.conf, machine id), and the network. What runs
// afterwards belongs to package machine; what makes copies differ to package
// identity.
//
// # Invariants
//
//   - The image's files are never changed. What a machine must have and an
//     image may not (/etc/hosts, /etc/resolv.conf, /etc/hostname, the machine
//     id) is mounted over the image's files from memory, so it is in no disk
//     layer and in no diff. Only mount points an image lacks are created.
//   - Nothing here needs a program, a library or a directory of the image: one
//     static binary and nothing else is an image.
//   - After a failure the machine says "sietch: fatal: REASON" on its console
//     and powers off; it does not wait for somebody to look.
//
// # Concurrency
//
// [Run] is called once, by process 1, before anything else runs.
package boot
