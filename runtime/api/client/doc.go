// Package client is the Go client of sietch's API.
//
// The types, and a method for each operation, are generated from openapi.yaml;
// [Connect] adds where the server is and who asks, and the calls that are more than
// a request and an answer have methods here: [Client.Stream] for commands over a
// WebSocket, [Client.ForkEach] for copies as they come up, and [JSON] for the
// answer of a generated method, or its error.
//
// It imports nothing of the engine, so that a program that talks to a server
// carries none.
//
// # Concurrency
//
// A Client is safe for concurrent use.
package client
