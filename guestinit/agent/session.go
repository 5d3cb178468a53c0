package agent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killGrace is what a session has between being asked and being killed.
const killGrace = time.Second

// signalSession sends sig to every process of a session: an interactive shell
// keeps its jobs in process groups of their own, so the leader's group is not
// all there is. It returns how many it reached.
//
// A process is looked up by a pidfd first and its session checked second, so a
// number that is used again cannot be hit.
func signalSession(sid int, sig unix.Signal) int {
	proc, err := os.Open("/proc")
	if err != nil {
		if unix.Kill(-sid, sig) == nil {
			return 1
		}
		return 0
	}
	defer proc.Close()
	reached := 0
	for {
		names, err := proc.Readdirnames(128)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && signalMember(pid, sid, sig) {
				reached++
			}
		}
		if err != nil {
			return reached
		}
	}
}

func signalMember(pid, sid int, sig unix.Signal) bool {
	if !isMember(pid, sid) { // cheaper than a pidfd, and mostly the answer
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return isMember(pid, sid) && unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}

// isMember reports whether pid is a live process of the session.
func isMember(pid, sid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// pid (comm) state ppid pgrp session; comm may contain anything.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(f) > 3 && f[0][0] != 'Z' && f[0][0] != 'X' && string(f[3]) == strconv.Itoa(sid)
}

// killSession kills a session until nobody is left, in case it forks meanwhile.
func killSession(sid int) {
	for range 20 {
		if signalSession(sid, unix.SIGKILL) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
