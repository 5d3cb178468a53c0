// Package identity makes one copy of a machine differ from its siblings.
//
// It owns everything that two forks of one commit must not share and nobody
// else would change: the wall clock, the kernel's random pool, the host name,
// the machine id, the boot id, and the hooks an image brings for its own
// secrets (/etc/sietch/fork.d). It is applied at boot and after every restore,
// before the sandbox is handed out.
//
// # Order
//
// Entropy first: whatever runs later may draw from it. Then clock, names, ids;
// hooks last, so that they see the new identity. A clone whose pool could not
// be reseeded is an error; an image that refuses a file (read-only /etc) is not.
//
// # Concurrency
//
// Apply calls serialize each other.
package identity
