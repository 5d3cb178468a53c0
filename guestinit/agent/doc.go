// Package agent is the server inside the guest: what the host says to a
// sandbox, it says here.
//
// It owns the listener's connections, running processes on behalf of the host
// (users, terminals, streams, signals, exit codes, process groups), moving
// files as tar, and the moment after a restore in which a copy gets its
// identity. It leaves to others, through [Options]: starting and reaping
// children (the caller may be PID 1, which must have one waiter only), the main
// process, what an identity consists of, and powering off. The host's half is
// runtime/agent; the wire is described in guestinit/proto.
//
// # HTTP without net/http
//
// The server reads a small part of HTTP/1.1 by itself: bodies have a
// Content-Length, streams are upgrades. Likewise it decodes the requests that
// follow a restore without encoding/json. Both were measured before they were
// written, under TCG, where a restored machine has to translate every
// instruction anew that it has not yet run: net/http made the binary, which
// lives in the guest's memory, 3.4 MB larger (a binary of 2.5 MB without it),
// start-up 30 ms and the first request 10 to 15 ms longer; encoding/json took 20
// ms to decode its first request, the scanner here 4. A fork is meant to answer
// its first exec within 150 ms.
//
// # Processes in the background
//
// Such a process has no connection: the agent keeps it in a table, with the end
// of what it writes. All of that is memory of this program, so a snapshot has
// it, and every copy of the machine goes on with it; it costs the guest no disk.
// Ids are random, so that after going back in time an id names what it did or
// nothing. Output is never waited for: a reader that is too slow misses some,
// and is told how much.
//
// # What happens to streams
//
// A process runs in a session of its own. When it has ended, what it wrote is
// delivered however slow the reader is; if descendants hold its output open,
// they get [drainGrace] to say more and are then left running with their output
// discarded. When the client goes first, the session is hung up and, a second
// later, killed, unless the request said Detach.
//
// A snapshot may be taken while streams are open, and no client exists where it
// is restored. There the guest's next packet is answered with a reset. So a
// reset does not kill at once: an identity with Fork set detaches such streams
// (the process goes on, output is discarded, stdin that is not a terminal
// ends), and any request that shows the machine to be in use, or [resetGrace],
// kills them. Detaching resets the inherited connections rather than closing
// them in order, so that a host which still knows the connection (a checkout
// in place) learns of it at once.
//
// # Invariants
//
// Memory per stream is bounded: 64 KiB for each output, [proto.StdinWindow] for
// stdin. So is that of the table: see background.go. A peer that Options.Allow refuses gets no byte. Every goroutine ends
// with the connection or the process it serves.
package agent
