// Package machine is a booted guest: its agent, its main process, and its end.
//
// There are two forms. Normally process 1 is this program: it starts the
// image's command, serves the host and reaps orphans ([Run]). Where the image
// brings an init system, that becomes process 1 ([HandOver]) and the agent is a
// process beside it, in a control group of its own, started before the init
// system and not one of its services, so that reloading or restarting anything
// does not touch it.
//
// It owns the main process (start, output, exit code), powering off in an
// orderly way whatever runs, and the joining of agent, identity and reaper. What
// the host can ask for is the agent's.
//
// # Invariants
//
//   - Before power off the layer's file system is made read-only, so its journal
//     is empty and the host may read it.
//   - The console says "sietch: power off" last.
//
// # Concurrency
//
// A Machine's methods are safe for concurrent use.
package machine
