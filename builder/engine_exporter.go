package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/moby/buildkit/cache"
	"github.com/moby/buildkit/exporter"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/snapshot"
	"github.com/moby/buildkit/util/progress"
)

// The exporter's name and what crosses the wire for it. The client makes the
// output directory and owns it; both processes are the same user's, and the
// socket between them is in a directory of mode 0700.
const (
	exporterType = "sietch.ext4"

	attrOutput = "output" // directory for rootfs.ext4

	responseRootfs = "sietch.rootfs"                 // JSON of rootfsInfo
	responseConfig = exptypes.ExporterImageConfigKey // JSON of the OCI config, if there is one
)

// rootfsExporter makes the ext4 image of a build result. A result that was
// exported before and is still in the store is linked, not made again.
type rootfsExporter struct {
	store *store
	// results remembers what became of a result: one file per cache record.
	results string
}

// Resolve implements exporter.Exporter.
func (e *rootfsExporter) Resolve(_ context.Context, id int, attrs map[string]string) (exporter.ExporterInstance, error) {
	output := attrs[attrOutput]
	if !filepath.IsAbs(output) {
		return nil, fmt.Errorf("export image: output %q is no absolute path", output)
	}
	return &rootfsExport{rootfsExporter: e, id: id, attrs: attrs, output: output}, nil
}

type rootfsExport struct {
	*rootfsExporter
	id     int
	attrs  map[string]string
	output string
}

var _ exporter.ExporterInstance = (*rootfsExport)(nil)

func (e *rootfsExport) ID() int                  { return e.id }
func (e *rootfsExport) Name() string             { return "exporting to ext4 image" }
func (e *rootfsExport) Type() string             { return exporterType }
func (e *rootfsExport) Attrs() map[string]string { return e.attrs }
func (e *rootfsExport) Config() *exporter.Config { return exporter.NewConfig() }

// Export implements exporter.ExporterInstance.
func (e *rootfsExport) Export(ctx context.Context, src *exporter.Source, info exporter.ExportBuildInfo) (map[string]string, exporter.FinalizeFunc, exporter.DescriptorReference, error) {
	ref, config, err := soleResult(src)
	if err != nil {
		return nil, nil, nil, err
	}
	rootfs, err := e.rootfs(ctx, ref, info.SessionID)
	if err != nil {
		return nil, nil, nil, err
	}
	blob, err := json.Marshal(rootfs)
	if err != nil {
		return nil, nil, nil, err
	}
	resp := map[string]string{responseRootfs: string(blob)}
	if config != nil {
		resp[responseConfig] = string(config)
	}
	return resp, nil, nil, nil
}

// soleResult picks the one platform of a result. The reference is nil for an
// image with nothing in it.
func soleResult(src *exporter.Source) (cache.ImmutableRef, []byte, error) {
	if len(src.Refs) == 0 {
		return src.Ref, src.Metadata[exptypes.ExporterImageConfigKey], nil
	}
	if len(src.Refs) > 1 {
		return nil, nil, errors.New("export image: the build has results for several platforms, and an image is for one")
	}
	for id, ref := range src.Refs {
		config := src.Metadata[exptypes.ExporterImageConfigKey+"/"+id]
		if config == nil {
			config = src.Metadata[exptypes.ExporterImageConfigKey]
		}
		return ref, config, nil
	}
	return nil, nil, nil
}

func (e *rootfsExport) rootfs(ctx context.Context, ref cache.ImmutableRef, sessionID string) (rootfsInfo, error) {
	target := filepath.Join(e.output, rootfsFile)
	key := "scratch"
	if ref != nil {
		key = ref.ID()
	}
	if info, ok := e.recall(key, target); ok {
		return info, progress.OneOff(ctx, "image is unchanged")(nil)
	}
	dir := ""
	if ref == nil {
		var err error
		if dir, err = os.MkdirTemp(e.output, "empty-"); err != nil {
			return rootfsInfo{}, fmt.Errorf("export image: %w", err)
		}
		defer os.Remove(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			return rootfsInfo{}, fmt.Errorf("export image: %w", err)
		}
	} else {
		m, err := ref.Mount(ctx, true, session.NewGroup(sessionID))
		if err != nil {
			return rootfsInfo{}, fmt.Errorf("mount build result: %w", err)
		}
		mounter := snapshot.LocalMounter(m)
		if dir, err = mounter.Mount(); err != nil {
			return rootfsInfo{}, fmt.Errorf("mount build result: %w", err)
		}
		defer mounter.Unmount()
	}
	done := progress.OneOff(ctx, "writing ext4 image")
	info, err := makeRootfs(ctx, dir, target)
	if done(err) != nil {
		return rootfsInfo{}, err
	}
	return info, e.remember(key, info)
}

// recall links the image made of this result earlier to target.
func (e *rootfsExport) recall(key, target string) (rootfsInfo, bool) {
	b, err := os.ReadFile(filepath.Join(e.results, key))
	if err != nil {
		return rootfsInfo{}, false
	}
	var info rootfsInfo
	if json.Unmarshal(b, &info) != nil || info.Format != rootfsFormat {
		return rootfsInfo{}, false
	}
	if err := e.store.linkRootfs(info.Digest, target); err != nil {
		return rootfsInfo{}, false
	}
	return info, true
}

func (e *rootfsExport) remember(key string, info rootfsInfo) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.results, 0o700); err != nil {
		return fmt.Errorf("remember image of build result: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(e.results, key), b, 0o600); err != nil {
		return fmt.Errorf("remember image of build result: %w", err)
	}
	return nil
}

// forgetResults drops what is remembered of images that are no longer there.
func (e *rootfsExporter) forgetResults() error {
	entries, err := os.ReadDir(e.results)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep results: %w", err)
	}
	digests, err := e.store.rootfsDigests()
	if err != nil {
		return err
	}
	for _, x := range entries {
		p := filepath.Join(e.results, x.Name())
		b, err := os.ReadFile(p)
		var info rootfsInfo
		if err != nil || json.Unmarshal(b, &info) != nil || !digests[info.Digest] {
			if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("sweep results: %w", err)
			}
		}
	}
	return nil
}
