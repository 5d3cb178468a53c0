package proto

import "time"

// A process in the background has no connection of its own: the agent keeps it
// and what it writes. POST /v1/processes/start takes an [ExecRequest], whose
// Stdin, TTY and Detach mean nothing there, and answers a [Process]. Of the
// other routes, all POST:
//
//	/v1/processes/list     {}                    records: a Process each, oldest first
//	/v1/processes/inspect  ProcessRequest        Process
//	/v1/processes/wait     ProcessRequest        records: the Process, once it has ended
//	/v1/processes/output   OutputRequest         records: FrameOffset and FrameData
//	/v1/processes/signal   ProcessSignalRequest  {}
//	/v1/processes/remove   ProcessRequest        {}

// Process is one process in the background.
type Process struct {
	ID string `json:"id"`
	// Args are the command, shortened where they are long.
	Args    []string  `json:"args"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Running bool      `json:"running"`
	// Ended and Exit are set once it has ended.
	Ended *time.Time  `json:"ended,omitempty"`
	Exit  *ExitStatus `json:"exit,omitempty"`
	// OutputBytes is all it has written, OutputFrom the offset of the oldest
	// byte that is still kept.
	OutputBytes int64 `json:"output_bytes"`
	OutputFrom  int64 `json:"output_from"`
}

// ProcessRequest names a process.
type ProcessRequest struct {
	ID string `json:"id"`
}

// OutputRequest asks for what a process has written. FrameOffset comes before
// the first FrameData, wherever bytes are missing that were dropped before they
// could be sent, and last.
type OutputRequest struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
	// Limit is how many bytes at most; 0 is all.
	Limit int64 `json:"limit,omitempty"`
	// Follow goes on until the process has ended.
	Follow bool `json:"follow,omitempty"`
}

// ProcessSignalRequest signals a process and its group.
type ProcessSignalRequest struct {
	ID     string `json:"id"`
	Signal int    `json:"signal"`
}
