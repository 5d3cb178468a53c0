package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/client/llb"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
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
	// Tag picks one of several images in an OCI layout or archive.
	Tag string
	// Config for a rootfs, which has none of its own.
	Config *Config
	// Progress, when not nil, gets a few lines for people.
	Progress io.Writer
}

// Import makes an image from an OCI layout, a `docker save` archive or a tar of
// a root file system; tars may be compressed with gzip, zstd or xz.
//
// ErrArchive for a source that is damaged, of no known format, or unsafe: names
// with "..", links that lead out.
func (b *Builder) Import(ctx context.Context, r ImportRequest) (Image, error) {
	var names []string
	if r.Name != "" {
		full, err := ParseName(r.Name)
		if err != nil {
			return Image{}, fmt.Errorf("import: %w: %w", ErrInvalidRequest, err)
		}
		names = []string{full}
	}
	if !slices.Contains([]Format{FormatAuto, FormatOCI, FormatDocker, FormatRootfs}, r.Format) {
		return Image{}, fmt.Errorf("import: %w: format %q is none of oci, docker, rootfs", ErrInvalidRequest, r.Format)
	}
	if r.Progress == nil {
		r.Progress = io.Discard
	}
	temp, release, err := b.store.tempDir()
	if err != nil {
		return Image{}, err
	}
	defer release()
	drop, err := b.store.holdBlobs()
	if err != nil {
		return Image{}, err
	}
	defer drop()
	in, err := b.readSource(ctx, r, temp)
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", r.sourceName(), err)
	}
	if names == nil {
		names = in.names
	}
	img, err := b.admit(ctx, in, names, r.Progress)
	if err != nil {
		return Image{}, fmt.Errorf("import %s: %w", r.sourceName(), err)
	}
	return img, nil
}

func (r ImportRequest) sourceName() string {
	if r.Source == "" {
		return "standard input"
	}
	return r.Source
}

// incoming is an image whose blobs are in the store already.
type incoming struct {
	manifest string
	config   []byte
	names    []string
}

// admit makes the ext4 image of incoming blobs and adds it to the store. The
// layers are unpacked by the engine, as those of any base image are. The blobs
// are held by the caller.
func (b *Builder) admit(ctx context.Context, in incoming, names []string, progress io.Writer) (Image, error) {
	_, arch, err := configFromOCI(in.config)
	if err != nil {
		return Image{}, err
	}
	if arch != goruntime.GOARCH {
		return Image{}, fmt.Errorf("%w: the image is for %s, this host is %s", ErrInvalidRequest, arch, goruntime.GOARCH)
	}
	platform := ocispecs.Platform{OS: "linux", Architecture: arch}
	ref := localDomain + "/incoming@" + in.manifest
	def, err := llb.Image(ref, llb.Platform(platform)).Marshal(ctx, llb.Platform(platform))
	if err != nil {
		return Image{}, fmt.Errorf("unpack image: %w", err)
	}
	fmt.Fprintln(progress, "unpacking")
	img, err := b.solve(ctx, def, client.SolveOpt{}, names, in.config, display{mode: "quiet"})
	if err != nil {
		if d, ok := detailOf(err); ok {
			return Image{}, d
		}
		return Image{}, fmt.Errorf("unpack image: %w", err)
	}
	return img, b.store.recordManifest(img.ID, in.manifest)
}

// parallelLayers is how many layers are fetched at a time.
const parallelLayers = 3

// storeImage puts the blobs of an image from elsewhere into the store. Layers
// stay as they are when they are compressed, so that the image keeps its digest;
// others are compressed. report is called with how many are done, from several
// goroutines.
func (s *store) storeImage(ctx context.Context, img v1.Image, report func(layer, of int)) (incoming, error) {
	config, err := img.RawConfigFile()
	if err != nil {
		return incoming{}, fmt.Errorf("read image configuration: %w", err)
	}
	var f ocispecs.Image
	if err := json.Unmarshal(config, &f); err != nil {
		return incoming{}, fmt.Errorf("%w: read image configuration: %w", ErrArchive, err)
	}
	layers, err := img.Layers()
	if err != nil {
		return incoming{}, fmt.Errorf("list layers: %w", err)
	}
	if len(layers) != len(f.RootFS.DiffIDs) {
		return incoming{}, fmt.Errorf("%w: the manifest has %d layers, the configuration %d", ErrArchive, len(layers), len(f.RootFS.DiffIDs))
	}
	descs := make([]v1.Descriptor, len(layers))
	same := make([]bool, len(layers))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelLayers)
	var done atomic.Int64
	for k, l := range layers {
		g.Go(func() error {
			var err error
			if descs[k], same[k], err = s.storeLayer(gctx, l, f.RootFS.DiffIDs[k]); err != nil {
				return fmt.Errorf("layer %d: %w", k+1, err)
			}
			report(int(done.Add(1)), len(layers))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return incoming{}, err
	}
	kept := !slices.Contains(same, false) // every layer is stored as it came
	manifest := ""
	if kept {
		if manifest, err = s.keepManifest(img, config); err != nil {
			return incoming{}, err
		}
	} else if manifest, err = s.putManifest(config, descs); err != nil {
		return incoming{}, err
	}
	return incoming{manifest: manifest, config: config}, nil
}

// keepManifest stores the manifest and configuration byte by byte.
func (s *store) keepManifest(img v1.Image, config []byte) (string, error) {
	raw, err := img.RawManifest()
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	m, err := img.Manifest()
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	got, err := s.putBlob(config)
	if err != nil {
		return "", err
	}
	if want := m.Config.Digest.String(); got != want {
		return "", fmt.Errorf("%w: the configuration has digest %s, the manifest says %s", ErrArchive, got, want)
	}
	return s.putBlob(raw)
}

// storeLayer stores one layer and reports whether it is as it was.
func (s *store) storeLayer(ctx context.Context, l v1.Layer, want digest.Digest) (v1.Descriptor, bool, error) {
	mediaType, err := l.MediaType()
	if err != nil {
		return v1.Descriptor{}, false, err
	}
	if !mediaType.IsDistributable() {
		return v1.Descriptor{}, false, fmt.Errorf("%w: it is not in the source (%s)", ErrArchive, mediaType)
	}
	if isCompressed(mediaType) {
		h, err := l.Digest()
		if err != nil {
			return v1.Descriptor{}, false, err
		}
		size, err := l.Size()
		if err != nil {
			return v1.Descriptor{}, false, err
		}
		r, err := l.Compressed()
		if err != nil {
			return v1.Descriptor{}, false, err
		}
		defer r.Close()
		err = s.copyBlob(contextReader{ctx, r}, h.String())
		return v1.Descriptor{MediaType: mediaType, Digest: h, Size: size}, true, err
	}
	r, err := l.Uncompressed()
	if err != nil {
		return v1.Descriptor{}, false, err
	}
	defer r.Close()
	w, err := s.createLayer()
	if err != nil {
		return v1.Descriptor{}, false, err
	}
	if _, err := io.Copy(w, contextReader{ctx, r}); err != nil {
		w.abort()
		return v1.Descriptor{}, false, err
	}
	stored, err := w.commit()
	if err != nil {
		return v1.Descriptor{}, false, err
	}
	if stored.diffID != want {
		return v1.Descriptor{}, false, fmt.Errorf("%w: its content has digest %s, the configuration says %s", ErrArchive, stored.diffID, want)
	}
	return stored.Descriptor, false, nil
}

func isCompressed(t types.MediaType) bool {
	switch t {
	case types.DockerLayer, types.OCILayer, types.OCILayerZStd:
		return true
	}
	return false
}

// contextReader ends reading when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// readSource looks at the source and stores its blobs.
func (b *Builder) readSource(ctx context.Context, r ImportRequest, temp string) (incoming, error) {
	if r.Source == "" && r.Reader == nil {
		return incoming{}, fmt.Errorf("%w: nothing to read", ErrInvalidRequest)
	}
	if r.Source != "" {
		st, err := os.Stat(r.Source)
		if err != nil {
			return incoming{}, err
		}
		if st.IsDir() {
			if r.Format == FormatRootfs || r.Format == FormatDocker {
				return incoming{}, fmt.Errorf("%w: format %s is a tar, this is a directory", ErrArchive, r.Format)
			}
			return b.readLayout(ctx, r, r.Source)
		}
		f, err := os.Open(r.Source)
		if err != nil {
			return incoming{}, err
		}
		defer f.Close()
		r.Reader = f
	}
	return b.readArchive(ctx, r, temp)
}

// archiveError joins a sentinel to what a library said about a source.
func archiveError(format string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || isNoSpace(err) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrArchive, format, err)
}
