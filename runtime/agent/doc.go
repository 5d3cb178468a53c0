// Package agent is the host side of the guest agent: a client for one sandbox.
//
// It owns connections to the guest (reuse, patience while a machine comes up),
// exec streams, and files both ways, including the rules of `cp`. It leaves to
// others how the guest's network is reached ([Options.Dial]), when an identity
// is due, and what errors mean to a user. The protocol is described in
// guestinit/proto, its other end is guestinit/agent.
//
// # Speed
//
// The time from a restored machine to its first exec is a feature. [Client.Identify]
// and [Client.WaitReady] therefore do not rely on the kernel to repeat a lost
// SYN, which it does after a second, but open other connections meanwhile until
// one is answered. The answer to an identity says whether
// the guest is ready, an exec request may carry the identity with it, and a
// connection that has carried an exec to its end is used again.
//
// # What is trusted
//
// Nothing a guest sends: frames and answers are bounded, archives are unpacked
// beneath their destination without device nodes and setuid bits
// (see guestinit/proto/tartree).
//
// # Concurrency
//
// A Client is safe for concurrent use. Every call uses a connection of its own.
// A call ends when its context does; its connection is then given up, which for
// an exec ends the process unless it is detached. Memory per call is bounded:
// reading stops while a writer is slow.
package agent
