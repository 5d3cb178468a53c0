// Command guestinit is the one program sietch puts into a guest.
//
// It is process 1 (package boot, then package machine), the agent beside an init
// system, what the kernel runs to load a module, and what systemd returns to at
// the end of a shutdown; which of them, its name says. The parts live in
// packages of their own: agent serves the host, identity tells copies apart,
// reaper waits for children, proto is what both sides speak.
//
// It is one static binary without cgo that needs nothing from the image. It must
// stay small and quick to start: it lives in every guest's memory, and on a host
// without KVM every instruction of it is translated first.
package main
