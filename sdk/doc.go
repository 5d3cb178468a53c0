// Package sdk holds the clients that programs use: python, a package of its own
// with its own tests, and go/sietch.
//
// It owns the test that makes those of other languages part of `make test`: the
// package is built, installed as anybody would, and its suite run against a
// server with real machines. It leaves the API to runtime/api.
//
// # Invariants
//
//   - What a client sends and expects is held against openapi.yaml by a test of
//     its own, so that an operation added there cannot be forgotten here.
//   - The examples of docs/sdk.md and of each README run.
package sdk
