package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// store is DIR/images:
//
//	HEX/image.json    what is known of image sha256:HEX
//	HEX/rootfs.ext4   mode 0444
//	HEX/manifest      digest of its OCI manifest, once somebody needed one
//	names/NAME        the id of the image of that name
//	blobs/sha256/HEX  OCI manifests, configs and compressed layers
//	lock, blobs.lock
//
// Reading takes no lock: every file is complete under its name. Adding, naming
// and removing hold lock exclusively, for moments only. Who writes blobs holds
// blobs.lock shared until a manifest file keeps them; who sweeps blobs holds it
// exclusively.
type store struct {
	dir  string // DIR/images
	temp string // DIR/tmp
	log  *slog.Logger
	now  func() time.Time
}

const (
	recordFile   = "image.json"
	manifestFile = "manifest"
)

// openStore makes the directories. Every one is for the owner alone.
func openStore(dataDir string, log *slog.Logger, now func() time.Time) (*store, error) {
	s := &store{dir: filepath.Join(dataDir, "images"), temp: filepath.Join(dataDir, "tmp"), log: log, now: now}
	for _, d := range []string{dataDir, s.dir, s.temp, s.namesDir(), s.blobsDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("open image store: %w", err)
		}
	}
	return s, nil
}

func (s *store) namesDir() string { return filepath.Join(s.dir, "names") }
func (s *store) blobsDir() string { return filepath.Join(s.dir, "blobs", "sha256") }
func (s *store) imageDir(id string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(id, "sha256:"))
}

// record is the content of image.json.
type record struct {
	ID           string    `json:"id"`
	Created      time.Time `json:"created"`
	SizeBytes    int64     `json:"size_bytes"`
	RootfsDigest string    `json:"rootfs_digest"`
	Architecture string    `json:"architecture"`
	Config       Config    `json:"config"`
}

// imageID hashes what makes an image what it is. The JSON encoding of a Config
// is canonical: fields in a fixed order, map keys sorted.
func imageID(rootfsDigest, architecture string, c Config) (string, error) {
	b, err := json.Marshal(struct {
		Version      int    `json:"version"`
		Rootfs       string `json:"rootfs"`
		Architecture string `json:"architecture"`
		Config       Config `json:"config"`
	}{1, rootfsDigest, architecture, c})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// load reads one image by its full id.
func (s *store) load(id string) (Image, error) {
	b, err := os.ReadFile(filepath.Join(s.imageDir(id), recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return Image{}, fmt.Errorf("image %s: %w", id, ErrImageNotFound)
	}
	if err != nil {
		return Image{}, fmt.Errorf("read image %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return Image{}, fmt.Errorf("read image %s: %w", id, err)
	}
	if r.ID != id {
		return Image{}, fmt.Errorf("read image %s: its record is of %s", id, r.ID)
	}
	return Image{
		ID: r.ID, Created: r.Created, SizeBytes: r.SizeBytes, RootfsDigest: r.RootfsDigest,
		RootfsPath: filepath.Join(s.imageDir(id), rootfsFile), Config: r.Config, Architecture: r.Architecture,
	}, nil
}

// names returns the names of every image, sorted.
func (s *store) names() (map[string][]string, error) {
	entries, err := os.ReadDir(s.namesDir())
	if err != nil {
		return nil, fmt.Errorf("list image names: %w", err)
	}
	out := map[string][]string{}
	for _, e := range entries {
		name, err := nameOfFile(e.Name())
		if err != nil || strings.HasPrefix(e.Name(), ".") { // renameio's own
			continue
		}
		id, err := s.readName(name)
		if errors.Is(err, ErrImageNotFound) { // taken away meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		out[id] = append(out[id], name)
	}
	for _, names := range out {
		sort.Strings(names)
	}
	return out, nil
}

func (s *store) readName(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.namesDir(), nameFile(name)))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("image %s: %w", name, ErrImageNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("read image name %s: %w", name, err)
	}
	id := strings.TrimSpace(string(b))
	if !isDigest(id) {
		return "", fmt.Errorf("read image name %s: it holds no id", name)
	}
	return id, nil
}

// byName finds the image of a full name.
func (s *store) byName(full string) (Image, error) {
	id, err := s.readName(full)
	if err != nil {
		return Image{}, err
	}
	img, err := s.load(id)
	if errors.Is(err, ErrImageNotFound) {
		return Image{}, fmt.Errorf("image %s: %w", full, ErrImageNotFound)
	}
	return img, err
}

// ids lists the images there are.
func (s *store) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []string
	for _, e := range entries {
		if id := "sha256:" + e.Name(); isDigest(id) && e.IsDir() {
			out = append(out, id)
		}
	}
	return out, nil
}

// list returns all images with their names. One that cannot be read is
// reported to the log and left out.
func (s *store) list(ctx context.Context) ([]Image, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		img, err := s.load(id)
		if err != nil {
			if !errors.Is(err, ErrImageNotFound) {
				s.log.Warn("image cannot be read", "image", id, "err", err)
			}
			continue
		}
		img.Names = names[id]
		out = append(out, img)
	}
	sort.Slice(out, func(a, b int) bool {
		if !out[a].Created.Equal(out[b].Created) {
			return out[a].Created.After(out[b].Created)
		}
		return out[a].ID < out[b].ID
	})
	return out, nil
}

// find resolves NAME[:TAG], an id or a unique prefix of one. A name wins over a
// prefix.
func (s *store) find(nameOrID string) (Image, error) {
	full, nameErr := ParseName(nameOrID)
	if nameErr == nil {
		img, err := s.byName(full)
		if err == nil {
			return s.withNames(img)
		}
		if !errors.Is(err, ErrImageNotFound) {
			return Image{}, err
		}
	}
	m := idPattern.FindStringSubmatch(nameOrID)
	if m == nil {
		if nameErr != nil {
			return Image{}, nameErr
		}
		return Image{}, s.notFound(nameOrID, full)
	}
	ids, err := s.ids()
	if err != nil {
		return Image{}, err
	}
	matches := slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, "sha256:"+m[1]) })
	switch len(matches) {
	case 0:
		return Image{}, s.notFound(nameOrID, full)
	case 1:
		img, err := s.load(matches[0])
		if err != nil {
			return Image{}, err
		}
		return s.withNames(img)
	}
	return Image{}, fmt.Errorf("image %s: %w: it fits %d images", nameOrID, ErrAmbiguous, len(matches))
}

func (s *store) notFound(asked, full string) error {
	hint := "sietch image ls shows the images there are"
	if full != "" {
		if _, err := parseBase(full); err == nil {
			hint = imageHint(full)
		}
	}
	return withHint(fmt.Errorf("image %s: %w", asked, ErrImageNotFound), hint)
}

func (s *store) withNames(img Image) (Image, error) {
	names, err := s.names()
	if err != nil {
		return Image{}, err
	}
	img.Names = names[img.ID]
	return img, nil
}

// add puts a finished rootfs, in a temporary directory of this store, under its
// id and gives it names. An image that is already there stays as it is.
func (s *store) add(from string, info rootfsInfo, architecture string, c Config, names []string) (Image, error) {
	id, err := imageID(info.Digest, architecture, c)
	if err != nil {
		return Image{}, fmt.Errorf("add image: %w", err)
	}
	unlock, err := s.lock()
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if _, err := s.load(id); errors.Is(err, ErrImageNotFound) {
		r := record{
			ID: id, Created: s.now().UTC().Truncate(time.Second), SizeBytes: info.ContentBytes,
			RootfsDigest: info.Digest, Architecture: architecture, Config: c,
		}
		if err := s.publish(from, r); err != nil {
			return Image{}, err
		}
	} else if err != nil {
		return Image{}, err
	}
	for _, n := range names {
		if err := s.setName(n, id); err != nil {
			return Image{}, err
		}
	}
	img, err := s.load(id)
	if err != nil {
		return Image{}, err
	}
	return s.withNames(img)
}

// publish moves the rootfs in from and a record to their final directory, which
// appears whole or not at all.
func (s *store) publish(from string, r record) error {
	stage, err := os.MkdirTemp(from, "image-")
	if err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(stage, recordFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	// Images that differ in their configuration alone share the file.
	if err := s.linkRootfs(r.RootfsDigest, filepath.Join(stage, rootfsFile)); err != nil {
		if err := os.Rename(filepath.Join(from, rootfsFile), filepath.Join(stage, rootfsFile)); err != nil {
			return fmt.Errorf("add image: %w", err)
		}
	}
	if err := syncDir(stage); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	final := s.imageDir(r.ID)
	// A directory without a record is what a killed removal left.
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	if err := os.Rename(stage, final); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	if err := syncDir(s.dir); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	return nil
}

// remove implements Builder.Remove up to the blobs.
func (s *store) remove(ctx context.Context, nameOrID string, inUse func(id string) error) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	img, err := s.find(nameOrID)
	if err != nil {
		return err
	}
	full, err := ParseName(nameOrID)
	byName := err == nil && slices.Contains(img.Names, full)
	if byName && len(img.Names) > 1 {
		return s.dropName(full)
	}
	if inUse != nil {
		if err := inUse(img.ID); err != nil {
			return err
		}
	}
	// The record goes first: without it the directory is no image any more, and
	// names that are left over point at nothing.
	dir := s.imageDir(img.ID)
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil {
		return fmt.Errorf("remove image %s: %w", nameOrID, err)
	}
	for _, n := range img.Names {
		if err := s.dropName(n); err != nil {
			return err
		}
	}
	if err := removeTree(dir); err != nil {
		return fmt.Errorf("remove image %s: %w", nameOrID, err)
	}
	return syncDir(s.dir)
}

func (s *store) dropName(full string) error {
	if err := removeIfThere(filepath.Join(s.namesDir(), nameFile(full))); err != nil {
		return fmt.Errorf("remove image name %s: %w", full, err)
	}
	return syncDir(s.namesDir())
}

// sweep removes what killed operations left behind.
func (s *store) sweep() error {
	if err := s.sweepTemp(); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	ids, err := s.ids()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := s.load(id); errors.Is(err, ErrImageNotFound) {
			if err := removeTree(s.imageDir(id)); err != nil {
				return fmt.Errorf("sweep images: %w", err)
			}
		}
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	for id, list := range names {
		if _, err := s.load(id); !errors.Is(err, ErrImageNotFound) {
			continue
		}
		for _, n := range list {
			if err := s.dropName(n); err != nil {
				return err
			}
		}
	}
	return s.sweepBlobs()
}

// setName points a name at an image. The lock is held.
func (s *store) setName(full, id string) error {
	if err := renameio.WriteFile(filepath.Join(s.namesDir(), nameFile(full)), []byte(id+"\n"), 0o600); err != nil {
		return fmt.Errorf("name image %s: %w", full, err)
	}
	return nil
}

// linkRootfs makes target a link to the rootfs of that digest.
func (s *store) linkRootfs(digest, target string) error {
	ids, err := s.ids()
	if err != nil {
		return err
	}
	for _, id := range ids {
		img, err := s.load(id)
		if err == nil && img.RootfsDigest == digest {
			return os.Link(img.RootfsPath, target)
		}
	}
	return fmt.Errorf("rootfs %s: %w", digest, ErrImageNotFound)
}

// rootfsDigests is the set of those in the store.
func (s *store) rootfsDigests() (map[string]bool, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, id := range ids {
		if img, err := s.load(id); err == nil {
			out[img.RootfsDigest] = true
		}
	}
	return out, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTree deletes a directory whose content may be read-only.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
