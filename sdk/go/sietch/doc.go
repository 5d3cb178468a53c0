// Package sietch is the Go client of sietch, git for running machines: it talks
// to `sietch serve`, of this machine or another one.
//
//	c, err := sietch.New(sietch.Options{})
//	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm"})
//	res, err := box.Exec(ctx, "uname", "-a")
//	first, err := box.Commit(ctx, "before the upgrade")
//	copies, err := box.Fork(ctx, sietch.ForkRequest{N: 8})
//
// It owns what generated code lacks: finding the server, errors with their code
// and hint, commands over a WebSocket, and answers that come piece by piece. The
// types of requests and answers are the generated ones of runtime/api/client, and
// [Client.API] gives the calls that have no method here.
//
// # Invariants
//
//   - An error of the API is an [*Error], and errors.Is finds its [Code].
//   - A context bounds the call it is given to, and nothing else does: a command
//     may take as long as it takes. When the context of a command ends, so does
//     the command.
//   - What is returned as a stream is the caller's to close; iterators close
//     themselves.
//
// # Concurrency
//
// A Client and what it returns are safe for concurrent use, except that an
// [ExecStream] has one reader and one writer.
package sietch
