// Package proto is what the host and the guest agent say to each other.
//
// It owns the wire types and the framing of streams and is shared by both
// sides; it does no I/O of its own beyond reading and writing frames. The
// agent speaks HTTP/1.1 on TCP port [Port] of the guest's tap address and
// answers the gateway address only.
package proto

import "time"

const (
	// Version of the protocol. The host refuses an agent with another major.
	Version = 1
	// Revision counts what was added to a version; the agent of a machine that
	// was committed before has a lower one, none at first. 1: processes in the
	// background, the routes of files beside stat, put and get, and FrameZeroes.
	Revision = 1
	// Port the agent listens on.
	Port = 1024

	// Constant addresses of the tap network inside every sandbox. They are the
	// same everywhere, so that a fork needs no renumbering.
	GuestAddr   = "169.254.77.2"
	GatewayAddr = "169.254.77.1"
	PrefixBits  = 30
	GuestMAC    = "02:73:69:65:74:63"
	GatewayMAC  = "02:73:69:65:74:01"
)

// RouteRevision is the revision that a route came with.
func RouteRevision(path string) int {
	switch path {
	case "/v1/status", "/v1/identity", "/v1/exec", "/v1/sync", "/v1/shutdown", "/v1/files/stat", "/v1/files/put", "/v1/files/get":
		return 0
	}
	return 1
}

// Disk ids and the guest devices they become, in order.
const (
	ImageDisk = "image" // vda: read-only ext4 image
	LayerDisk = "layer" // vdb: writable ext4 layer (overlay upper and work)
)

// Config is what the guest init needs at a cold boot. It is put into the
// initramfs' companion: a second cpio appended to it, as /sietch/config.json,
// so that nothing but a path is on the kernel command line.
type Config struct {
	Version  int    `json:"version"`
	Hostname string `json:"hostname"`
	// Network is false for --network none: no address is set, loopback only.
	// The tap and card exist even then (the agent is reached through it), but
	// there is no route or DNS beyond the gateway.
	Network bool `json:"network"`
	// Main process; empty Args means none (the agent alone keeps the machine up).
	Args       []string `json:"args,omitempty"`
	Env        []string `json:"env,omitempty"` // K=V, image's first
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	StopSignal string   `json:"stop_signal,omitempty"` // e.g. SIGTERM, 15
	// Init hands PID 1 to Args (systemd and friends); the agent stays as a child.
	Init bool `json:"init,omitempty"`
	// Identity for the first boot.
	Identity Identity `json:"identity"`
}

// Identity is what makes one copy of a machine differ from its siblings. It is
// applied at boot and again after every restore, before the sandbox is handed
// out.
type Identity struct {
	Hostname  string `json:"hostname"`
	MachineID string `json:"machine_id"` // 32 hex digits, written where the image has /etc/machine-id
	BootID    string `json:"boot_id"`    // UUID, bound over /proc/sys/kernel/random/boot_id
	// Time is the host's clock when the request was made.
	Time time.Time `json:"time"`
	// Entropy is credited to the kernel's pool, followed by a forced reseed.
	// At least 32 bytes; base64 in JSON.
	Entropy []byte `json:"entropy"`
	// Fork is true when the machine was restored rather than booted: stale
	// exec streams are detached and /etc/sietch/fork.d hooks are run.
	Fork bool `json:"fork"`
}

// Status answers GET /v1/status.
type Status struct {
	Version int        `json:"version"`
	Ready   bool       `json:"ready"` // an exec would succeed now
	Main    MainStatus `json:"main"`
	Time    time.Time  `json:"time"`
	// Error says why the guest could not be made ready, when it could not.
	Error string `json:"error,omitempty"`
}

// MainStatus is the state of the main process.
type MainStatus struct {
	Running  bool `json:"running"`
	PID      int  `json:"pid,omitempty"`
	ExitCode *int `json:"exit_code"` // nil while running or never started
}

// ExecRequest starts a process: POST /v1/exec with this JSON as the body of an
// "Upgrade: sietch-exec" request; after the 101 answer both sides speak frames.
type ExecRequest struct {
	Args []string `json:"args"`
	// Env is added to the sandbox's own environment, later wins.
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"` // name or number, optional :group
	Stdin      bool     `json:"stdin"`          // false: stdin is /dev/null
	TTY        bool     `json:"tty"`
	Rows       uint16   `json:"rows,omitempty"`
	Cols       uint16   `json:"cols,omitempty"`
	// TimeoutMS kills the process group after that time (exit code 124, as
	// timeout(1)); 0 is none.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Detach leaves the process running when the client goes.
	Detach bool `json:"detach,omitempty"`
	// RawArgs and RawEnv replace Args and Env where those are not UTF-8, which
	// JSON cannot carry.
	RawArgs [][]byte `json:"raw_args,omitempty"`
	RawEnv  [][]byte `json:"raw_env,omitempty"`
	// Identity, when set, is applied before the process is started: what
	// POST /v1/identity does, without a round trip of its own.
	Identity *Identity `json:"identity,omitempty"`
}

// ExitStatus ends an exec stream.
type ExitStatus struct {
	// Code as a shell gives it: the process's own, 128+n for a signal, 126 not
	// executable, 127 not found, 124 timed out.
	Code int `json:"code"`
	// Signal is the number that ended it, 0 if none.
	Signal int `json:"signal,omitempty"`
	// Error explains 126, 127 and 124.
	Error string `json:"error,omitempty"`
}

// ErrorBody is the body of every answer that is not 2xx or 101.
type ErrorBody struct {
	Code    string `json:"code"` // one of the Code constants
	Message string `json:"message"`
}

// Codes of an [ErrorBody].
const (
	CodeNotFound = "not_found" // a path, a user or a route
	CodeInvalid  = "invalid"   // the request can never succeed as it is
	CodeNotReady = "not_ready" // the machine is on its way
	CodeExists   = "exists"    // something else is where the result would go
	CodeNoSpace  = "no_space"  // the sandbox's disk is full
	CodeVersion  = "version"   // the host speaks another version
	CodeInternal = "internal"
)
