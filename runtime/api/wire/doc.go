// Package wire is how answers of the API are read by those who call it from Go:
// the client for programs (sdk/go/sietch) and the shell's (runtime/remote).
//
// It owns what generated code lacks: errors with their code and hint, answers
// that come piece by piece, and commands and connections over a WebSocket. It
// knows neither the engine nor where a server is; requests are made by package
// client.
//
// # Invariants
//
//   - An answer that is none of success is an [*Error], or [ErrProtocol].
//   - Whoever is given an answer here closes it; iterators close themselves.
//
// # Concurrency
//
// Nothing is shared but an [Exec] and a [Conn], each of which may have one reader
// and one writer at a time; signals and sizes may be sent beside them.
package wire
