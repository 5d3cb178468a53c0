// Package netplumb gives each sandbox its network: a namespace, a tap, NAT,
// forwarded ports, and the rules that keep guests away from the host and from
// each other.
//
// It owns every kernel object it makes (network namespaces under /run/netns,
// one bridge and one pair of nftables tables per instance, one veth per
// sandbox) and nothing else on the host. It speaks netlink and nftables and is
// the only package of the module that does. It leaves to its caller which
// sandboxes exist, their records, and what runs inside a namespace.
package netplumb
