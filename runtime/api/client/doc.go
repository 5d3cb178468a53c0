// Package client is the types of sietch's API, and a method for each operation,
// generated from openapi.yaml.
//
// Package sietch (sdk/go/sietch) is the client for programs: it adds where the
// server is and who asks, errors with their code and hint, commands over a
// WebSocket and answers that come piece by piece. Nothing of that is here.
//
// It imports nothing of the engine, so that a program that talks to a server
// carries none.
//
// # Concurrency
//
// A Client is safe for concurrent use.
package client
