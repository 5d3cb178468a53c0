// Package runtime is the engine of sietch: the verbs of the product.
//
// It is the only place that joins images (builder), history (branches),
// networks (netplumb) and virtual machines (runtime/vmm, runtime/guestmem,
// runtime/agent). It owns the life of sandboxes, their HEADs, the cache of hot
// dumps and the recovery after a crash. It leaves formats to branches, the
// Dockerfile to builder, the kernel's network to netplumb and flags and
// printing to its callers.
//
// # The data directory
//
//	DATA/
//	  images/ buildkit/   builder: root file systems, build cache
//	  kernel/             builder/guestboot: kernel and initramfs
//	  store/              branches: commits, refs, chunks
//	  cache/commits-B/ID/ hot dump of a commit: memory, layer.ext4, devices/ (B: boot id)
//	  cache/zero-N        sparse file that fresh guest RAM of N bytes maps
//	  sandboxes/ID/       sandbox.json, layer.ext4, console.log, main.log
//	  tmp/                half-made things; what no live process owns is swept
//	  events.jsonl        journal of what happened; events.old.jsonl: the one before
//
// and, since a unix socket's path must be short and die with the host,
//
//	/run/sietch/INSTANCE/ID-N/   sockets of one launch of a VMM
//
// # Invariants
//
//   - No daemon: every verb opens what it needs, or finds it open. A VMM outlives the command
//     that started it and is adopted by pid, start time and boot id.
//   - A hot dump is immutable once it has its name and is never removed while a
//     machine maps it. It can always be made again from the store.
//   - sandbox.json is replaced atomically and says the truth about files and
//     processes; HEADs and reflogs live in the store, moved in one transaction
//     with the branch; the record's copy of HEAD is for verbs that must not
//     wait for the store, and is put right at the next open.
//   - Every verb validates first, and has an undo for each step.
//   - An event is told once its verb has happened, and telling it never fails the
//     verb.
//   - A sandbox whose time is up goes with the next verb that locks it or makes
//     room for others; a copy of it has no time of its own unless it is given one.
//
// # Concurrency
//
// Verbs that change a sandbox hold its lock (flock on its directory); those
// that only talk to the guest hold none. The store admits one verb at a time,
// whichever process it is in, and is held for as short as can be: never while a
// guest is paused, never while waiting for a guest. A process that serves others
// leaves it open between verbs (Options.KeepStore) until another one wants it.
package runtime
