// Package reaper is the one place of the guest that waits for children.
//
// PID 1 inherits every orphan and has to wait for all of them, so a second
// waiter elsewhere would lose statuses to it. Who starts a process therefore
// does it with [Reaper.Start] and gets the status from [Process.Done]; nothing
// else in the guest calls wait, [exec.Cmd.Wait] and [exec.Cmd.Run] included.
//
// It serves a process that is not PID 1 the same way (the agent beside an init
// system): New makes it a subreaper, so its grandchildren come back to it.
//
// # Concurrency
//
// All methods are safe for concurrent use. Starts do not serialize each other.
package reaper
