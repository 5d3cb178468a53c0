// Package acceptance proves a finished bin/sietch from the outside: it knows
// exit codes, `--json`, and what a host shows of processes, mounts, namespaces
// and rules, and imports nothing of the module but the gate that says which
// tests a host can run, and the examples that it shows.
//
// The binary is SIETCH_BIN, or bin/sietch of this checkout; data directories are
// made under SIETCH_TEST_DIR, or the system's directory for large temporary
// files, and removed at the end. Tests that share a data directory share only
// its images and kernel; each removes its own sandboxes, and [repo.cleanHost]
// holds that against the host.
//
// Tests that judge no times, and nothing of the host that others change, run
// beside each other after the rest, each in a data directory of its own: [apart],
// [together].
//
// SIETCH_TEST_SEED is a data directory to take kernel and image "small" from,
// for hosts without a Go command and a package mirror; SIETCH_TEST_SLOW is how
// many times longer everything may take; SIETCH_VMM chooses what machines run in.
package acceptance
