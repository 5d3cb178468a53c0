package arrakis

import (
	"context"
	"errors"
	"fmt"

	"github.com/sietch-dev/sietch/runtime"
)

// DefaultImage is booted where neither a request nor the caller names one.
const DefaultImage = "debian:bookworm"

// StartRequest asks for a machine of some name to run.
type StartRequest struct {
	Name        string
	Image       string // of a new machine; empty: Default
	Default     string // empty: DefaultImage
	CPUs        int    // of a new machine of an image; 0: default
	MemoryBytes int64  // likewise
	EntryPoint  string // shell line of a new machine, instead of what its image runs
	SnapshotID  string // when set: as it was then
}

// Start boots a machine that there is none of yet, starts a stopped one, resumes
// a paused one, and refuses (ErrBusy) a running one. With a snapshot it restores
// it: under a new name, or in place of what is there.
func Start(ctx context.Context, engine runtime.Engine, q StartRequest) (runtime.Sandbox, error) {
	if q.Name == "" {
		return runtime.Sandbox{}, usage("vmName is missing", "")
	}
	b, err := engine.Inspect(ctx, q.Name)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return boot(ctx, engine, q)
	case err != nil:
		return b, err
	case q.SnapshotID != "":
		ref, err := SnapshotRef(ctx, engine, q.SnapshotID)
		if err != nil {
			return b, err
		}
		return engine.Checkout(ctx, runtime.CheckoutRequest{Name: q.Name, Ref: ref})
	case b.State == runtime.Running:
		return b, busy(fmt.Sprintf("vm %s is already running", q.Name), "")
	case b.State == runtime.Paused:
		if err := engine.Resume(ctx, q.Name); err != nil {
			return b, err
		}
		return engine.Inspect(ctx, q.Name)
	}
	return engine.Start(ctx, q.Name)
}

// boot makes a machine of an image or a snapshot.
func boot(ctx context.Context, engine runtime.Engine, q StartRequest) (runtime.Sandbox, error) {
	run := runtime.RunRequest{Name: q.Name, CPUs: q.CPUs, MemoryBytes: q.MemoryBytes, Network: runtime.NetworkNAT}
	if q.SnapshotID != "" {
		ref, err := SnapshotRef(ctx, engine, q.SnapshotID)
		if err != nil {
			return runtime.Sandbox{}, err
		}
		run.From, run.Network = ref, ""
		return engine.Run(ctx, run)
	}
	run.From = q.Image
	if run.From == "" {
		run.From = q.Default
	}
	if run.From == "" {
		run.From = DefaultImage
	}
	if q.EntryPoint != "" {
		run.Args = []string{"/bin/sh", "-c", q.EntryPoint}
	}
	image, err := engine.InspectImage(ctx, run.From)
	switch {
	case errors.Is(err, runtime.ErrNotFound) && q.Image == "":
		return runtime.Sandbox{}, notFound(fmt.Sprintf("there is no image %s, which is booted when none is named", run.From), "make it with sietch build or sietch image bootstrap, or choose another with --default-image")
	case err != nil:
		return runtime.Sandbox{}, err
	}
	run.From = image.ID // an image, whatever commits may be called
	return engine.Run(ctx, run)
}
