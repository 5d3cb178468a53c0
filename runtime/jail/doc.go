// Package jail gives each sandbox's VMM an identity without rights and bounds on
// what it may take of the host: a user id of its own, and a control group with
// limits on CPU, memory and number of processes. The rest of the jail (no new
// privileges, no capabilities, no files, a seccomp filter) is the driver's.
//
// User ids come from the sandbox's network address, which is unique on the host
// already and freed with the sandbox, so nothing has to be allocated. They lie
// in 1879048192 to 1879113727, which no distribution gives to people, services
// or containers.
//
// Control groups are made by containerd's library, in cgroup v2 or, on hosts
// that still have them, in the v1 hierarchies cpu, memory and pids:
//
//	/sietch/INSTANCE/ID
//
// A host that lets nobody make control groups, as inside some containers, gets
// machines without limits: MakeGroup says [ErrDenied] then, and doctor repeats it.
package jail
