// Package branches is a content-addressed history of machines: a DAG of
// commits over shared pages, with branches, tags, HEADs and reflogs.
//
// It owns the store directory: the pack files that hold page bodies, the index
// beside them (Badger, which no other package imports), the lock that keeps
// other processes out, and the format of all of it (docs/format.md). It knows
// nothing of virtual machines: what a page means, what a device state is and
// what a sandbox does with its HEAD is the caller's business, and a commit
// carries an opaque field for it.
//
// # Objects
//
// A page is identified by the hash of its bytes, a tree node by the hash of
// its children's hashes, a commit by the hash of its encoding, which names the
// roots of its trees. A [Map] is therefore complete: reading one never looks
// at another commit, however long the history is, while two maps share every
// subtree in which they agree.
//
// # Invariants
//
//   - An object that is in the index is whole: everything it names is in the
//     index too, and its bytes are durable. Writing goes body → fsync → index →
//     node → ref, deleting the other way round, so a crash at any instant keeps it.
//   - A ref, HEAD or reflog entry names a commit that exists.
//   - A branch is the HEAD of at most one sandbox.
//   - How an object is stored (pack, block, delta) is no part of its identity,
//     and gc may change it.
//
// # Concurrency
//
// One process at a time. A process that makes many calls has a [Keeper], which
// leaves the store open between them and closes it as soon as somebody else wants
// it: whoever waits for the lock has a read lock on the file "wanted" meanwhile,
// and the keeper looks for one while it is idle, and after every call. Calls of one
// keeper have the store one after another, as those of several processes do. What
// is kept is always in the state of a store just opened: with a whole reserve, with
// room to merge, with nothing in its memtable for longer than a moment.
//
// Within a process every method of [Store] may be called from
// many goroutines; a [Writer] belongs to one goroutine, and several writers
// work side by side. Refs change in one transaction at a time. gc runs beside
// readers and writers: a writer is a lease on all it wrote or found stored, a
// reader on the map it reads.
package branches
