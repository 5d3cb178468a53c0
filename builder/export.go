package builder

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	digest "github.com/opencontainers/go-digest"
)

// Export writes an image as an archive others can load. FormatDocker, which
// FormatAuto means here, is an OCI layout that `docker load` of any version
// takes too; FormatOCI is the layout alone; FormatRootfs is the bare tree. Layers
// are not compressed: whoever wants that compresses the stream. An image asked
// for by name has that name in the archive alone, one asked for by id all of its.
func (b *Builder) Export(ctx context.Context, nameOrID string, w io.Writer, f Format) error {
	img, err := b.Image(ctx, nameOrID)
	if err != nil {
		return err
	}
	if full, err := ParseName(nameOrID); err == nil && slices.Contains(img.Names, full) {
		img.Names = []string{full}
	}
	switch f {
	case FormatRootfs:
		err = tarRootfs(ctx, img.RootfsPath, w)
	case FormatAuto, FormatDocker, FormatOCI:
		err = b.exportArchive(ctx, img, w, f != FormatOCI)
	default:
		return fmt.Errorf("export %s: %w: format %q is none of docker, oci, rootfs", nameOrID, ErrInvalidRequest, f)
	}
	if err != nil {
		return fmt.Errorf("export %s: %w", nameOrID, err)
	}
	return nil
}

// plainLayer is an uncompressed layer in a file.
type plainLayer struct {
	path   string
	size   int64
	digest digest.Digest
}

func (b *Builder) exportArchive(ctx context.Context, img Image, w io.Writer, docker bool) error {
	temp, release, err := b.store.tempDir()
	if err != nil {
		return err
	}
	defer release()
	layers, err := b.plainLayers(ctx, img, temp)
	if err != nil {
		return err
	}
	var diffIDs []digest.Digest
	for _, l := range layers {
		diffIDs = append(diffIDs, l.digest)
	}
	config, err := ociConfig(img, diffIDs)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := writeLayout(ctx, tw, img, config, layers, docker); err != nil {
		return err
	}
	return tw.Close()
}

// plainLayers makes files of the layers an image came with, or of its content
// as one layer.
func (b *Builder) plainLayers(ctx context.Context, img Image, temp string) ([]plainLayer, error) {
	manifest, err := b.store.recordedManifest(img.ID)
	if errors.Is(err, os.ErrNotExist) {
		l, err := spoolLayer(filepath.Join(temp, "layer"), func(w io.Writer) error { return tarRootfs(ctx, img.RootfsPath, w) })
		return []plainLayer{l}, err
	}
	if err != nil {
		return nil, err
	}
	m, err := b.store.readManifest(manifest)
	if err != nil {
		return nil, err
	}
	var out []plainLayer
	for k, d := range m.Layers {
		l, err := spoolLayer(filepath.Join(temp, fmt.Sprintf("layer-%d", k)), func(w io.Writer) error {
			f, err := b.store.openBlob(d.Digest.String())
			if err != nil {
				return err
			}
			defer f.Close()
			r, err := Decompress(contextReader{ctx, f})
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(w, r)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", k+1, err)
		}
		out = append(out, l)
	}
	return out, nil
}

func spoolLayer(path string, write func(io.Writer) error) (plainLayer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return plainLayer{}, err
	}
	d := digest.SHA256.Digester()
	if err := errors.Join(write(io.MultiWriter(f, d.Hash())), f.Close()); err != nil {
		return plainLayer{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return plainLayer{}, err
	}
	return plainLayer{path, st.Size(), d.Digest()}, nil
}

// writeLayout writes an OCI layout and, for docker, the file that older versions
// of it read.
func writeLayout(ctx context.Context, tw *tar.Writer, img Image, config []byte, layers []plainLayer, docker bool) error {
	hash := func(b []byte) v1.Hash {
		h, _ := v1.NewHash(digest.FromBytes(b).String()) // always well formed
		return h
	}
	var descs []v1.Descriptor
	var paths []string
	written := map[digest.Digest]bool{}
	for _, l := range layers {
		p := "blobs/sha256/" + l.digest.Encoded()
		paths = append(paths, p)
		h, err := v1.NewHash(l.digest.String())
		if err != nil {
			return err
		}
		descs = append(descs, v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: h, Size: l.size})
		if written[l.digest] {
			continue
		}
		written[l.digest] = true
		if err := tarFile(ctx, tw, p, l.path, l.size); err != nil {
			return err
		}
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hash(config), Size: int64(len(config))},
		Layers: descs,
	})
	if err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	desc := v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: hash(manifest), Size: int64(len(manifest)),
		Platform: &v1.Platform{OS: "linux", Architecture: img.Architecture},
	}
	if len(img.Names) == 0 {
		index.Manifests = []v1.Descriptor{desc}
	}
	for _, n := range img.Names {
		d := desc
		_, tag := SplitName(n)
		d.Annotations = map[string]string{refNameAnnotation: tag, "io.containerd.image.name": canonicalName(n)}
		index.Manifests = append(index.Manifests, d)
	}
	indexJSON, err := json.Marshal(index)
	if err != nil {
		return err
	}
	files := []struct {
		name string
		data []byte
	}{
		{"blobs/sha256/" + hash(config).Hex, config},
		{"blobs/sha256/" + hash(manifest).Hex, manifest},
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", indexJSON},
	}
	if docker {
		m, err := json.Marshal([]map[string]any{{
			"Config": "blobs/sha256/" + hash(config).Hex, "RepoTags": img.Names, "Layers": paths,
		}})
		if err != nil {
			return err
		}
		files = append(files, struct {
			name string
			data []byte
		}{"manifest.json", m})
	}
	for _, f := range files {
		if err := tw.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), Typeflag: tar.TypeReg, ModTime: epoch}); err != nil {
			return err
		}
		if _, err := io.Copy(tw, bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	return nil
}

func tarFile(ctx context.Context, tw *tar.Writer, name, path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg, ModTime: epoch}); err != nil {
		return err
	}
	_, err = io.Copy(tw, contextReader{ctx, f})
	return err
}
