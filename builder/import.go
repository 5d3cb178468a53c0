package builder

import (
	"context"
	"errors"
	"io"
)

// Format of an image outside the store.
type Format string

const (
	FormatAuto   Format = ""       // imports only: look at the content
	FormatOCI    Format = "oci"    // OCI layout, a directory or a tar of one
	FormatDocker Format = "docker" // archive of `docker save`
	FormatRootfs Format = "rootfs" // tar of a root file system
)

// ImportRequest is one import.
type ImportRequest struct {
	// Source is a file or directory; when empty, Reader is read.
	Source string
	Reader io.Reader
	// Name for the image; when empty, the names the source itself has.
	Name   string
	Format Format
	// Config for a rootfs, which has none of its own.
	Config *Config
	// Progress, when not nil, gets a few lines for people.
	Progress io.Writer
}

// Import makes an image from an OCI layout, a `docker save` archive or a tar of
// a root file system; tars may be compressed with gzip, zstd or xz.
func (b *Builder) Import(ctx context.Context, r ImportRequest) (Image, error) {
	return Image{}, errors.ErrUnsupported
}

// Export writes an image as an archive others can load: FormatDocker,
// FormatOCI or FormatRootfs. FormatAuto is FormatDocker.
func (b *Builder) Export(ctx context.Context, nameOrID string, w io.Writer, f Format) error {
	return errors.ErrUnsupported
}

// Pull fetches an image from a registry, with the credentials of the user's
// docker configuration, and names it as it is named there.
func (b *Builder) Pull(ctx context.Context, ref string, progress io.Writer) (Image, error) {
	return Image{}, errors.ErrUnsupported
}

// Bootstrap makes a base image (debian:bookworm, ubuntu:noble, …) from the
// package mirror and keyring that apt of this host is configured with. When
// the name is already in the store it returns that image.
func (b *Builder) Bootstrap(ctx context.Context, name string, progress io.Writer) (Image, error) {
	return Image{}, errors.ErrUnsupported
}
