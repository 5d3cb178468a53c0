// Package mcp offers the engine to language models: the tools and resources of
// the Model Context Protocol, by the official Go SDK.
//
// It owns the tools' names, parameters, annotations and texts, and the limits of
// what goes into a model's context. What Arrakis' tools mean it shares with the
// REST routes (package arrakis); every verb is [runtime.Engine]'s, and who may
// use which sandbox is decided by the engine that it is given.
//
// # Two ways in
//
//	sietch mcp            ─ stdin, stdout ─┐
//	                                       ├─▶ New(engine) ─▶ tools, resources
//	sietch serve, /mcp    ─ Handler ───────┘
//
// Over HTTP there are no sessions: every request is judged by its own token, and
// a server that was restarted goes on where the other ended. A client that goes
// away ends its call.
//
// # Invariants
//
//   - What a verb says is a result with isError, message and hint, so that the
//     model can do better; protocol errors are left to the protocol.
//   - A result is bounded, whatever a guest writes, and says how the rest is
//     read. Memory does not grow with what passes through.
//   - Long calls tell their progress, so that clients do not take silence for the
//     end.
//   - Neither command lines nor outputs or contents are logged.
//
// # Concurrency
//
// A server serves many calls at once; calls share nothing but the engine.
package mcp
