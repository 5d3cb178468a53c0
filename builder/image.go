package builder

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Image is one image of the store. It never changes, but for its Names.
type Image struct {
	// ID is "sha256:" and 64 hex digits, over RootfsDigest, Architecture and
	// the canonical form of Config.
	ID string
	// Names of the image with their tags, sorted: "debian:bookworm".
	Names   []string
	Created time.Time
	// SizeBytes is what the files in it hold: holes count nothing, a file with
	// several names counts once.
	SizeBytes int64
	// RootfsDigest is the hash of the content of the file at RootfsPath, which
	// is a clean ext4 file system, sparse and read-only.
	RootfsDigest string
	RootfsPath   string
	Config       Config
	// Architecture as Go and OCI name it: "amd64".
	Architecture string
}

// Config is what an image says about how it is run.
type Config struct {
	Env          []string          `json:"env,omitempty"` // K=V
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	User         string            `json:"user,omitempty"` // name or number, optional :group
	WorkingDir   string            `json:"workdir,omitempty"`
	StopSignal   string            `json:"stop_signal,omitempty"`   // e.g. SIGTERM, 15
	ExposedPorts []string          `json:"exposed_ports,omitempty"` // "80/tcp", sorted
	Labels       map[string]string `json:"labels,omitempty"`
	Shell        []string          `json:"shell,omitempty"`
	OnBuild      []string          `json:"on_build,omitempty"` // only builds FROM the image look at it
	Volumes      []string          `json:"volumes,omitempty"`  // sorted
	Healthcheck  *Healthcheck      `json:"healthcheck,omitempty"`
}

// Healthcheck is the HEALTHCHECK of a Dockerfile.
type Healthcheck struct {
	// Test is ["NONE"], ["CMD", arg…] or ["CMD-SHELL", line].
	Test          []string      `json:"test,omitempty"`
	Interval      time.Duration `json:"interval,omitempty"`
	Timeout       time.Duration `json:"timeout,omitempty"`
	StartPeriod   time.Duration `json:"start_period,omitempty"`
	StartInterval time.Duration `json:"start_interval,omitempty"`
	Retries       int           `json:"retries,omitempty"`
}

// Images lists the store, newest first.
func (b *Builder) Images(ctx context.Context) ([]Image, error) { return b.store.list(ctx) }

// Image finds one by NAME[:TAG], id or unique prefix of an id (at least four
// digits, with or without "sha256:"). A name wins over a prefix.
// ErrImageNotFound, ErrAmbiguous, ErrInvalidName.
func (b *Builder) Image(ctx context.Context, nameOrID string) (Image, error) {
	if err := ctx.Err(); err != nil {
		return Image{}, err
	}
	return b.store.find(nameOrID)
}

// Tag gives an image one more name, taking it from the image that had it.
func (b *Builder) Tag(ctx context.Context, nameOrID, name string) error {
	full, err := ParseName(name)
	if err != nil {
		return err
	}
	unlock, err := b.store.lock()
	if err != nil {
		return err
	}
	defer unlock()
	img, err := b.Image(ctx, nameOrID)
	if err != nil {
		return err
	}
	return b.store.setName(full, img.ID)
}

// Remove takes a name away, and deletes the image with its last name; given an
// id, the image with all its names. inUse, when not nil, is asked with the id
// before an image is deleted; its error stops the removal and is returned.
func (b *Builder) Remove(ctx context.Context, nameOrID string, inUse func(id string) error) error {
	if err := b.store.remove(ctx, nameOrID, inUse); err != nil {
		return err
	}
	return b.store.sweepBlobs()
}

// Verify reads the whole root file system of an image and compares it with its
// digest. ErrCorrupt.
func (b *Builder) Verify(ctx context.Context, nameOrID string) error {
	img, err := b.Image(ctx, nameOrID)
	if err != nil {
		return err
	}
	f, err := os.Open(img.RootfsPath)
	if err != nil {
		return fmt.Errorf("verify image %s: %w", nameOrID, err)
	}
	defer f.Close()
	digest, err := digestSparse(ctx, f)
	if err != nil {
		return fmt.Errorf("verify image %s: %w", nameOrID, err)
	}
	if digest != img.RootfsDigest {
		return withHint(fmt.Errorf("verify image %s: %w: its content has digest %s, want %s", nameOrID, ErrCorrupt, digest, img.RootfsDigest),
			"remove it with sietch image rm and build it again")
	}
	return nil
}
