package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/renameio/v2"
	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder/ext4"
)

// newBlob prefixes blobs that are still being written.
const newBlob = ".new-"

// openBlob opens a blob for reading; os.ErrNotExist when there is none.
func (s *store) openBlob(digest string) (*os.File, error) {
	if !isDigest(digest) {
		return nil, fmt.Errorf("open blob %q: %w", digest, os.ErrNotExist)
	}
	return os.Open(s.blobPath(digest))
}

func (s *store) blobPath(digest string) string {
	return filepath.Join(s.blobsDir(), strings.TrimPrefix(digest, "sha256:"))
}

// blobWriter writes a blob whose digest is known at the end only.
type blobWriter struct {
	s    *store
	f    *os.File
	h    hash.Hash
	size int64
}

func (s *store) createBlob() (*blobWriter, error) {
	f, err := os.CreateTemp(s.blobsDir(), newBlob)
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", err)
	}
	return &blobWriter{s: s, f: f, h: sha256.New()}, nil
}

// Write implements io.Writer.
func (w *blobWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.h.Write(p[:n])
	w.size += int64(n)
	return n, err
}

// commit puts the blob under its digest.
func (w *blobWriter) commit() (digest string, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write blob: %w", err), removeIfThere(w.f.Name()))
		}
	}()
	if err := errors.Join(w.f.Sync(), w.f.Close()); err != nil {
		return "", err
	}
	digest = "sha256:" + hex.EncodeToString(w.h.Sum(nil))
	// The name is made durable by recordManifest, which refers to it.
	return digest, os.Rename(w.f.Name(), w.s.blobPath(digest))
}

// abort drops the blob.
func (w *blobWriter) abort() {
	w.f.Close()
	os.Remove(w.f.Name())
}

// putBlob stores small content.
func (s *store) putBlob(b []byte) (digest string, err error) {
	w, err := s.createBlob()
	if err != nil {
		return "", err
	}
	if _, err := w.Write(b); err != nil {
		w.abort()
		return "", fmt.Errorf("write blob: %w", err)
	}
	return w.commit()
}

// copyBlob stores what r holds, which must have the given digest.
func (s *store) copyBlob(r io.Reader, want string) error {
	if _, err := os.Stat(s.blobPath(want)); err == nil {
		return nil
	}
	w, err := s.createBlob()
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.abort()
		return fmt.Errorf("copy blob %s: %w", want, err)
	}
	if got := "sha256:" + hex.EncodeToString(w.h.Sum(nil)); got != want {
		w.abort()
		return fmt.Errorf("copy blob %s: %w: its content has digest %s", want, ErrArchive, got)
	}
	_, err = w.commit()
	return err
}

// layerWriter compresses a layer into a blob and hashes it uncompressed on the
// way.
type layerWriter struct {
	blob *blobWriter
	zstd *zstd.Encoder
	diff hash.Hash
}

func (s *store) createLayer() (*layerWriter, error) {
	blob, err := s.createBlob()
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewWriter(blob, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		blob.abort()
		return nil, fmt.Errorf("create layer: %w", err)
	}
	return &layerWriter{blob, z, sha256.New()}, nil
}

// Write implements io.Writer with uncompressed bytes.
func (w *layerWriter) Write(p []byte) (int, error) {
	w.diff.Write(p)
	return w.zstd.Write(p)
}

// storedLayer is a compressed layer in the store.
type storedLayer struct {
	v1.Descriptor
	diffID digest.Digest
}

func (w *layerWriter) commit() (storedLayer, error) {
	if err := w.zstd.Close(); err != nil {
		w.blob.abort()
		return storedLayer{}, fmt.Errorf("compress layer: %w", err)
	}
	d, err := w.blob.commit()
	if err != nil {
		return storedLayer{}, err
	}
	h, err := v1.NewHash(d)
	if err != nil {
		return storedLayer{}, err
	}
	return storedLayer{
		Descriptor: v1.Descriptor{MediaType: types.OCILayerZStd, Digest: h, Size: w.blob.size},
		diffID:     digest.NewDigest(digest.SHA256, w.diff),
	}, nil
}

func (w *layerWriter) abort() {
	w.zstd.Reset(nil)
	w.blob.abort()
}

// putManifest stores the manifest of an image of these layers and returns its
// digest.
func (s *store) putManifest(config []byte, layers []v1.Descriptor) (string, error) {
	configDigest, err := s.putBlob(config)
	if err != nil {
		return "", err
	}
	h, err := v1.NewHash(configDigest)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: h, Size: int64(len(config))},
		Layers:        layers,
	})
	if err != nil {
		return "", fmt.Errorf("write manifest: %w", err)
	}
	return s.putBlob(b)
}

// manifestMediaType reads the type of a manifest and rewinds f.
func manifestMediaType(f *os.File) (string, error) {
	var m struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.NewDecoder(io.LimitReader(f, 4<<20)).Decode(&m); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if m.MediaType == "" {
		m.MediaType = string(types.OCIManifestSchema1)
	}
	return m.MediaType, nil
}

// manifestOf returns the digest of the manifest of an image. An image from a
// Dockerfile has none until somebody builds FROM it: its one layer is then made
// from the ext4 image and kept.
func (s *store) manifestOf(ctx context.Context, img Image) (string, error) {
	if digest, err := s.recordedManifest(img.ID); err == nil || !errors.Is(err, os.ErrNotExist) {
		return digest, err
	}
	release, err := s.holdBlobs()
	if err != nil {
		return "", err
	}
	defer release()
	w, err := s.createLayer()
	if err != nil {
		return "", err
	}
	if err := tarRootfs(ctx, img.RootfsPath, w); err != nil {
		w.abort()
		return "", fmt.Errorf("make layer of image %s: %w", img.ID, err)
	}
	layer, err := w.commit()
	if err != nil {
		return "", err
	}
	config, err := ociConfig(img, []digest.Digest{layer.diffID})
	if err != nil {
		return "", err
	}
	manifest, err := s.putManifest(config, []v1.Descriptor{layer.Descriptor})
	if err != nil {
		return "", err
	}
	return manifest, s.recordManifest(img.ID, manifest)
}

func (s *store) recordedManifest(id string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.imageDir(id), manifestFile))
	if err != nil {
		return "", err
	}
	digest := strings.TrimSpace(string(b))
	if !isDigest(digest) {
		return "", fmt.Errorf("read manifest of image %s: it holds no digest", id)
	}
	return digest, nil
}

// recordManifest ties blobs to an image, which keeps them.
func (s *store) recordManifest(id, digest string) error {
	if err := syncDir(s.blobsDir()); err != nil {
		return fmt.Errorf("record manifest of image %s: %w", id, err)
	}
	if err := renameio.WriteFile(filepath.Join(s.imageDir(id), manifestFile), []byte(digest+"\n"), 0o600); err != nil {
		return fmt.Errorf("record manifest of image %s: %w", id, err)
	}
	return nil
}

// sweepBlobs deletes blobs that belong to no image. When somebody is writing
// blobs it does nothing; a later sweep will find them.
func (s *store) sweepBlobs() error {
	unlock, err := flock(filepath.Join(s.dir, "blobs.lock"), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	keep, err := s.referencedBlobs()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.blobsDir())
	if err != nil {
		return fmt.Errorf("sweep blobs: %w", err)
	}
	for _, e := range entries {
		if keep["sha256:"+e.Name()] {
			continue
		}
		if err := removeIfThere(filepath.Join(s.blobsDir(), e.Name())); err != nil {
			return fmt.Errorf("sweep blobs: %w", err)
		}
	}
	return nil
}

func (s *store) referencedBlobs() (map[string]bool, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, id := range ids {
		digest, err := s.recordedManifest(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		m, err := s.readManifest(digest)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		keep[digest] = true
		keep[m.Config.Digest.String()] = true
		for _, l := range m.Layers {
			keep[l.Digest.String()] = true
		}
	}
	return keep, nil
}

func (s *store) readManifest(digest string) (*v1.Manifest, error) {
	f, err := s.openBlob(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := v1.ParseManifest(f)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", digest, err)
	}
	return m, nil
}

// tarRootfs writes the content of an ext4 image as a tar stream.
func tarRootfs(ctx context.Context, path string, w io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fs, err := ext4.Open(f)
	if err != nil {
		return err
	}
	return writeTar(ctx, fs, w)
}
