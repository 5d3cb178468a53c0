package builder

import (
	"context"
	"errors"
	"io"
)

// BuildRequest is one build.
type BuildRequest struct {
	// ContextDir is the build context, a directory. When it is "-", Context is
	// read: a tar stream, compressed or not, or a lone Dockerfile.
	ContextDir string
	Context    io.Reader
	// Dockerfile is the path of the file; empty is ContextDir/Dockerfile. A
	// relative path is of the working directory, or of the context when it
	// exists only there.
	Dockerfile string
	// Names the image gets, NAME[:TAG].
	Names  []string
	Target string
	// BuildArgs as --build-arg.
	BuildArgs map[string]string
	Secrets   []Secret
	// BuildContexts are named contexts: a directory, "oci-layout://DIR[:TAG]"
	// or "docker-image://NAME", where local images come first.
	BuildContexts map[string]string
	NoCache       bool
	// Progress is "auto" (also ""), "plain", "rawjson" or "quiet".
	Progress string
	// ProgressOut is where it goes; os.Stderr when nil.
	ProgressOut io.Writer
}

// Secret is a --secret. Source is a file; otherwise Env is the name of an
// environment variable; with neither, the variable named ID if set, else the
// file.
type Secret struct {
	ID, Source, Env string
}

// Build makes an image from a Dockerfile. A build whose steps are all cached
// gives the image it gave before. On error nothing is added to the store.
func (b *Builder) Build(ctx context.Context, r BuildRequest) (Image, error) {
	return Image{}, errors.ErrUnsupported
}

// CacheUsage says how large the build cache is.
type CacheUsage struct {
	Bytes            int64
	ReclaimableBytes int64
	Records          int
}

// CacheUsage reports the build cache.
func (b *Builder) CacheUsage(ctx context.Context) (CacheUsage, error) {
	return CacheUsage{}, errors.ErrUnsupported
}

// PruneCache empties the build cache down to keepBytes (0: everything that is
// not in use) and returns how much was freed.
func (b *Builder) PruneCache(ctx context.Context, keepBytes int64) (int64, error) {
	return 0, errors.ErrUnsupported
}
