// Package netplumb gives each sandbox its network: a namespace, a tap, address
// translation, forwarded ports, and the rules that keep guests away from the
// host and from each other.
//
//	guest 169.254.77.2 ── tap ┐ namespace of the sandbox              host
//	                          │ 169.254.77.1   translation   uplink ── veth ── bridge ── the world
//	                          └ the same in every sandbox    10.213.x.y        10.213.x.1
//
// Inside a namespace everything looks the same for every guest, so a copy of a
// machine needs no new address and two copies cannot collide. Outside, each has
// an address that is unique on the host. Names of all objects derive from the
// instance (one data directory) and the sandbox id.
//
// # What it owns
//
// On the host: the bridge sietch-INSTANCE, the nftables tables of the same name
// (families bridge and ip), one veth per sandbox, namespaces under /run/netns
// and a lock file in /run/sietch. While a network exists it may also hold the
// forwarding setting of interfaces that do not forward by themselves. It never
// changes another rule, interface or setting, and it calls no other program. It
// is the only package of the module that speaks netlink or nftables.
//
// It leaves to its caller which sandboxes exist, their records and addresses,
// and what runs inside a namespace.
//
// # What a guest reaches
//
// With NAT: the networks that the host reaches, IPv4 only, and the resolvers by
// way of the gateway's port 53. Refused at once, not left to time out: other
// guests of any instance, every address of the host, link-local addresses and
// with them cloud metadata, broadcast and multicast. Of this only a resolver's
// port 53 is excepted, where the host or such an address is the resolver.
// Nothing enters but replies and forwarded ports, which work from outside, from
// the host's own addresses and from 127.0.0.1. Containers and machines beside
// the host are "networks that the host reaches".
//
// With None: the gateway, where nothing listens. The agent is dialled from it.
//
// TCP packets of connections that a namespace has not seen begin are answered
// with a reset, in both directions: what a copied guest believes open breaks
// with its next packet. (A guest that only waits to receive sends none.)
//
// Not defended: a guest can open so many connections that the host's connection
// tracking is full, as any program that is routed through a host can.
//
// # How it works
//
// Up, Down and Sweep compare the world as the kernel has it with the world as
// it is declared (plan.go), and apply the difference as steps (step.go), each
// with its opposite. No state is kept anywhere else: the kernel's objects are
// the record, and a fingerprint in each table tells whether its rules are those
// this version would write. What a crash leaves is found by its names.
//
// # Invariants
//
//   - A step has happened or it has not; applying it again is no error; a failed
//     Up takes back its steps, last first.
//   - Rules come before what they confine: tables before the bridge, a sandbox's
//     address into the tables last. Whenever something is missing, traffic is
//     dropped, not let through.
//   - With the last network of an instance everything of it is gone.
//   - A veth can use its own address only, on the bridge and inside.
//
// # Concurrency
//
// A Plumber is safe for concurrent use. What sandboxes share is changed under
// one lock for the whole host (goroutines first, then other processes), held
// for a few milliseconds; what lies inside a namespace is made without it.
// Calls about one sandbox are serialized within a process, and by its caller
// across processes.
//
// # Limits
//
// Linux allows 1023 ports on a bridge, hence as many networks per instance; an
// instance has 4093 addresses, and 16 instances fit into the default pool. IPv6
// is off inside. Legacy iptables or a firewall that drops what it does not know
// can forbid what is allowed here: see Notes.
package netplumb
