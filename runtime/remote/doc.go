// Package remote is the engine of a server that runs: every verb of
// [runtime.Engine] carried over the REST API through the unix socket in the data
// directory. The shell uses it in place of the local engine where a server
// answers, so that it has what the server holds open already.
//
// It owns finding the server, and making of an answer what the local engine would
// have returned: the same results, kinds of error, messages and hints, and the
// same streams. It leaves what a verb does to the server, the form of requests to
// package client, and how answers are read to package wire.
//
//	shell ─▶ remote.Engine ═ serve.sock ═▶ runtime/api ─▶ runtime.Local
//
// # Invariants
//
//   - Paths of the host are read here and streamed, by the user and in the
//     directory of the caller: build contexts, Dockerfiles, secrets, archives.
//     The server is told none.
//   - A context that ends, ends the call at the server, and the method returns
//     when what it began is undone, as the local engine does: the call is ended by
//     name (cancelCall) and answers. Where that cannot be said the connection is
//     broken off, to the same end.
//   - Nothing is tried twice. When the server goes in the middle, the error is
//     [ErrGone] and says what to look at.
//   - Server and shell are of one version; else [Open] refuses.
//
// What differs from the local engine: remarks about the host (such as that there
// is no KVM) are told where the server runs, settings of the engine are the
// server's, and output of a background process that was lost while it was
// followed is told at the end.
//
// # Concurrency
//
// An Engine is safe for concurrent use. No goroutine outlives the call that began
// it, except one that reads the stdin of an exec, which nothing can interrupt.
package remote
