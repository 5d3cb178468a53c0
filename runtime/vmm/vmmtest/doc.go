// Package vmmtest is the contract of package vmm as a test suite, and a fake
// that keeps it.
//
// It owns what every driver must do ([Run]) and what every jail must be
// ([RunJail]), a guest whose memory can be checked from outside (folders counter
// and guest, [GuestProgram]), and [Fake]: a driver whose machines are real
// processes with a real private mapping of the memory file, but no virtual
// hardware. Tests of those who use machines, such as the engine's, run on the
// fake.
//
// # Concurrency
//
// A Fake and its machines are safe for concurrent use, as the contract demands.
package vmmtest
