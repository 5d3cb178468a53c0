package builder

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	"github.com/ulikunitz/xz"
)

// readArchive imports a tar stream.
func (b *Builder) readArchive(ctx context.Context, r ImportRequest, temp string) (incoming, error) {
	plain, err := Decompress(contextReader{ctx, r.Reader})
	if err != nil {
		return incoming{}, archiveError("read archive", err)
	}
	defer plain.Close()
	if r.Format == FormatRootfs {
		return b.readRootfs(ctx, plain, r.Config)
	}
	// The other formats are read in no particular order: they need a file.
	spool := filepath.Join(temp, "archive.tar")
	if err := writeFile(spool, plain); err != nil {
		return incoming{}, archiveError("read archive", err)
	}
	format := r.Format
	if format == FormatAuto {
		if format, err = sniff(spool); err != nil {
			return incoming{}, err
		}
	}
	switch format {
	case FormatRootfs:
		f, err := os.Open(spool)
		if err != nil {
			return incoming{}, err
		}
		defer f.Close()
		return b.readRootfs(ctx, f, r.Config)
	case FormatDocker:
		return b.readDocker(ctx, r, spool)
	}
	dir := filepath.Join(temp, "layout")
	if err := unpackLayout(spool, dir); err != nil {
		return incoming{}, err
	}
	return b.readLayout(ctx, r, dir)
}

// Decompress undoes gzip, zstd and xz; anything else is passed on.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 1<<20)
	head, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		x, err := xz.NewReader(br)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(x), nil
	}
	return io.NopCloser(br), nil
}

func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// sniff tells the formats apart by the files at the top of the archive.
func sniff(spool string) (Format, error) {
	f, err := os.Open(spool)
	if err != nil {
		return "", err
	}
	defer f.Close()
	top := map[string]bool{}
	tr := tar.NewReader(f)
	entries := 0
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", fmt.Errorf("%w: it is no tar: %w", ErrArchive, err)
		}
		entries++
		if h.Typeflag == tar.TypeReg {
			top[path.Clean(h.Name)] = true
		}
	}
	switch {
	case entries == 0:
		return "", fmt.Errorf("%w: it is empty", ErrArchive)
	case top["manifest.json"]:
		return FormatDocker, nil
	case top["oci-layout"] && top["index.json"]:
		return FormatOCI, nil
	}
	return FormatRootfs, nil
}

// unpackLayout extracts what an OCI layout consists of, and nothing else: names
// are matched, not followed, so an archive cannot reach out of dir.
func unpackLayout(spool, dir string) error {
	f, err := os.Open(spool)
	if err != nil {
		return err
	}
	defer f.Close()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return err
	}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return archiveError("read OCI layout", err)
		}
		name := path.Clean(h.Name)
		target := ""
		if name == "oci-layout" || name == "index.json" {
			target = filepath.Join(dir, name)
		} else if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && isDigest("sha256:"+hex) {
			target = filepath.Join(blobs, hex)
		}
		if target == "" || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := writeFile(target, tr); err != nil {
			return archiveError("read OCI layout", err)
		}
	}
}

// readLayout imports an image of an OCI layout directory.
func (b *Builder) readLayout(ctx context.Context, r ImportRequest, dir string) (incoming, error) {
	p, err := layout.FromPath(dir)
	if err != nil {
		return incoming{}, archiveError("open OCI layout", err)
	}
	index, err := p.ImageIndex()
	if err != nil {
		return incoming{}, archiveError("open OCI layout", err)
	}
	top, err := layoutDigest(p, r.Tag)
	if err != nil {
		return incoming{}, withHint(fmt.Errorf("%w: %w", ErrArchive, err), "choose one image by its tag")
	}
	img, err := imageOfIndex(index, top)
	if err != nil {
		return incoming{}, archiveError("open OCI layout", err)
	}
	in, err := b.store.storeImage(ctx, img, b.reportLayers(r.Progress))
	if err != nil {
		return incoming{}, archiveError("read OCI layout", err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		return incoming{}, archiveError("open OCI layout", err)
	}
	for _, d := range m.Manifests {
		if d.Digest != top || r.Tag != "" && !taggedAs(d, r.Tag) {
			continue
		}
		// A bare tag is no name; what is one, is used.
		for _, key := range []string{"io.containerd.image.name", refNameAnnotation} {
			if n := d.Annotations[key]; strings.ContainsAny(n, "/:") {
				if full, err := ParseName(n); err == nil {
					if !slices.Contains(in.names, full) {
						in.names = append(in.names, full)
					}
					break
				}
			}
		}
	}
	return in, nil
}

// imageOfIndex follows nested indexes down to the image for this host.
func imageOfIndex(index v1.ImageIndex, h v1.Hash) (v1.Image, error) {
	for range 8 {
		m, err := index.IndexManifest()
		if err != nil {
			return nil, err
		}
		var desc *v1.Descriptor
		for k := range m.Manifests {
			if m.Manifests[k].Digest == h {
				desc = &m.Manifests[k]
			}
		}
		switch {
		case desc == nil:
			return nil, fmt.Errorf("the index has no %s", h)
		case desc.MediaType.IsImage():
			return index.Image(h)
		case !desc.MediaType.IsIndex():
			return nil, fmt.Errorf("%s is no image but %s", h, desc.MediaType)
		}
		if index, err = index.ImageIndex(h); err != nil {
			return nil, err
		}
		if m, err = index.IndexManifest(); err != nil {
			return nil, err
		}
		found := false
		for _, d := range m.Manifests {
			if d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == goruntime.GOARCH {
				h, found = d.Digest, true
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no image for linux/%s", goruntime.GOARCH)
		}
	}
	return nil, errors.New("indexes are nested too deep")
}

// readDocker imports an image of a `docker save` archive.
func (b *Builder) readDocker(ctx context.Context, r ImportRequest, spool string) (incoming, error) {
	open := func() (io.ReadCloser, error) { return os.Open(spool) }
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return incoming{}, archiveError("read docker archive", err)
	}
	var (
		tag   *name.Tag
		names []string
	)
	if len(m) == 1 && r.Tag == "" {
		for _, n := range m[0].RepoTags {
			if full, err := ParseName(n); err == nil {
				names = append(names, full)
			}
		}
	} else {
		full, err := dockerTag(m, r.Tag)
		if err != nil {
			return incoming{}, err
		}
		t, err := name.NewTag(full)
		if err != nil {
			return incoming{}, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
		}
		tag = &t
		if full, err := ParseName(full); err == nil {
			names = []string{full}
		}
	}
	img, err := tarball.Image(open, tag)
	if err != nil {
		return incoming{}, archiveError("read docker archive", err)
	}
	in, err := b.store.storeImage(ctx, rawLayers{img}, b.reportLayers(r.Progress))
	if err != nil {
		return incoming{}, archiveError("read docker archive", err)
	}
	in.names = names
	return in, nil
}

// dockerTag finds the one tag of an archive that is asked for.
func dockerTag(m tarball.Manifest, want string) (string, error) {
	var have []string
	for _, d := range m {
		for _, t := range d.RepoTags {
			if want != "" && (t == want || strings.HasSuffix(t, ":"+want)) {
				return t, nil
			}
			have = append(have, t)
		}
	}
	if want == "" {
		return "", withHint(fmt.Errorf("%w: it holds %d images: %s", ErrArchive, len(m), strings.Join(have, ", ")), "choose one image by its tag")
	}
	return "", fmt.Errorf("%w: no image is tagged %s; there are: %s", ErrArchive, want, strings.Join(have, ", "))
}

// rawLayers is an image whose layers are to be read uncompressed: those of a
// docker archive are, and compressing them with gzip only to store them would
// take many times longer than our own compression.
type rawLayers struct{ v1.Image }

// Layers implements v1.Image.
func (i rawLayers) Layers() ([]v1.Layer, error) {
	layers, err := i.Image.Layers()
	if err != nil {
		return nil, err
	}
	for k, l := range layers {
		layers[k] = rawLayer{l}
	}
	return layers, nil
}

type rawLayer struct{ v1.Layer }

// MediaType implements v1.Layer.
func (rawLayer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }

// reportLayers tells how far an import is.
func (b *Builder) reportLayers(w io.Writer) func(int, int) {
	var mu sync.Mutex
	return func(done, of int) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "layer %d of %d\n", done, of)
	}
}

// readRootfs imports the tar of a root file system as an image of one layer.
func (b *Builder) readRootfs(ctx context.Context, r io.Reader, c *Config) (incoming, error) {
	w, err := b.store.createLayer()
	if err != nil {
		return incoming{}, err
	}
	if err := copyRootfs(w, r); err != nil {
		w.abort()
		return incoming{}, archiveError("read root file system", err)
	}
	layer, err := w.commit()
	if err != nil {
		return incoming{}, err
	}
	img := Image{Created: b.opts.Now().UTC(), Architecture: goruntime.GOARCH, Config: defaultConfig}
	if c != nil {
		img.Config = *c
	}
	config, err := ociConfig(img, []digest.Digest{layer.diffID})
	if err != nil {
		return incoming{}, err
	}
	manifest, err := b.store.putManifest(config, []v1.Descriptor{layer.Descriptor})
	return incoming{manifest: manifest, config: config}, err
}

// defaultConfig is that of an image that brought none.
var defaultConfig = Config{Env: []string{"PATH=" + defaultPath}}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// copyRootfs copies a tar stream to w, checking it on the way: it has to be
// whole, and no name and no hard link may lead out of the root. Leading slashes
// are harmless and left to whoever unpacks it.
func copyRootfs(w io.Writer, r io.Reader) error {
	tee := io.TeeReader(r, w)
	tr := tar.NewReader(tee)
	entries := 0
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		entries++
		if err := checkEntry(h); err != nil {
			return err
		}
	}
	if entries == 0 {
		return errors.New("it is empty")
	}
	// What follows the end mark belongs to the stream that is hashed.
	_, err := io.Copy(io.Discard, tee)
	return err
}

func checkEntry(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo, tar.TypeXGlobalHeader:
	default:
		return fmt.Errorf("%q is of unknown type %q", h.Name, h.Typeflag)
	}
	names := []string{h.Name}
	if h.Typeflag == tar.TypeLink {
		names = append(names, h.Linkname)
	}
	for _, n := range names {
		if strings.ContainsRune(n, 0) {
			return fmt.Errorf("name %q has a NUL", n)
		}
		for _, part := range strings.Split(n, "/") {
			if part == ".." {
				return fmt.Errorf("name %q leads out of the root", n)
			}
			if strings.HasPrefix(part, ".wh.") {
				return fmt.Errorf("name %q marks a deletion in a layer; a root file system has none", n)
			}
		}
	}
	return nil
}
