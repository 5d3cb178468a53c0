package runtime

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// DefaultDataDir is used when neither flag nor SIETCH_DATA_DIR says otherwise.
const DefaultDataDir = "/var/lib/sietch"

// Options of [Open]; the zero value works.
type Options struct {
	DataDir string // absolute; empty: DefaultDataDir
	VMM     string // auto, cloud-hypervisor, qemu
	Logger  *slog.Logger
	// Remark receives one-line notes for the user (such as "no KVM, using TCG").
	Remark func(string)
	// LockWait is how long a command waits for another one that holds the store.
	LockWait time.Duration
	// BootTimeout bounds the wait for a guest to answer.
	BootTimeout time.Duration
}

// Open returns the engine on a data directory of this host. It is cheap and
// takes no lock: verbs that need the store open it for as long as they need it.
func Open(ctx context.Context, o Options) (Engine, error) {
	return nil, errors.New("not written yet")
}

// BuildEngineMain is the hidden sub-command by which this binary hosts BuildKit
// in a process of its own. args are those after the sub-command's name.
func BuildEngineMain(ctx context.Context, args []string) error {
	return errors.New("not written yet")
}

// BuildEngineCommand is the name of that hidden sub-command.
const BuildEngineCommand = "buildkit-engine"
