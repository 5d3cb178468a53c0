// Package api serves the engine over HTTP.
//
// It owns the wire: openapi.yaml is written first, and what follows from it is
// generated (server.gen.go here, the client in package client beneath). It
// leaves every verb to [runtime.Engine] and listening, files of flags and the
// process to its caller.
//
// # What stands between a request and the engine
//
//	host name ─▶ request id, log, metrics ─▶ token ─▶ rate ─▶ body limit ─▶ Idempotency-Key ─▶ handler
//
// # Invariants
//
//   - A handler does what one verb of the engine does; the shell can do no more
//     than the API and the other way round (a test compares them).
//   - One table maps the engine's sentinels to statuses and codes.
//   - Neither tokens nor command lines, environments, file contents or outputs
//     are logged.
//   - Memory does not grow with what passes through: streams are copied, and
//     whoever reads slowly slows the one who writes.
//   - When a client goes, what it waited for ends, and so does the process group
//     of its exec. Sandboxes and background processes stay, also when the server
//     goes: nothing here is state but caches that may be lost.
//
// # Concurrency
//
// A Server is safe for concurrent use. Every goroutine of a request ends before
// its handler returns.
package api
