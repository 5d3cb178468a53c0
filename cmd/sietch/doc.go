// Sietch is the command line of the product: flags, printing and exit codes.
//
// It owns the contract that scripts rely on: the names of commands and flags,
// what goes to which stream, the JSON documents and the exit codes. What the
// commands do is runtime's; this package knows nothing else of the module.
//
// # How a command line travels
//
//	main      streams, signals, exit code
//	arrange   flags and arguments to a canonical order, arity, "did you mean"
//	app       urfave/cli: flags with values and environment → one Action
//	X.go      flags → options struct → runX(ctx, env, options)
//	printer   documents, lines, tables; remarks on the other stream
//	explain   error → text, hint, exit code
//
// # Invariants
//
//   - stdout carries the result alone. Remarks, progress and errors go to stderr.
//   - A request is checked whole before the engine is opened; every mistake in
//     it is reported, one a line.
//   - A command line that is wrong ends with 2 and touches nothing.
//   - A terminal that was put into raw mode is put back on every way out.
//   - JSON arrays and objects are never null, times are UTC.
//
// # Concurrency
//
// A command runs on one goroutine. Signals arrive on another, which cancels the
// command's context, or hands them to the guest while an exec runs.
package main
