package builder

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	contentlocal "github.com/containerd/containerd/v2/plugins/content/local"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/moby/buildkit/client"
)

// addLayoutContext adds a named context that is an OCI layout. value is
// DIR[:TAG] or DIR[@DIGEST]; the frontend itself takes digests only.
func addLayoutContext(opt *client.SolveOpt, name, value string) error {
	dir, tag, digest := splitLayout(value)
	path, err := layout.FromPath(dir)
	if err != nil {
		return fmt.Errorf("open OCI layout %s: %w", dir, err)
	}
	if digest == "" {
		d, err := layoutDigest(path, tag)
		if err != nil {
			return fmt.Errorf("OCI layout %s: %w", dir, err)
		}
		digest = d.String()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	store, err := contentlocal.NewStore(abs)
	if err != nil {
		return fmt.Errorf("open OCI layout %s: %w", dir, err)
	}
	if opt.OCIStores == nil {
		opt.OCIStores = map[string]content.Store{}
	}
	id := fmt.Sprintf("layout-%d", len(opt.OCIStores))
	opt.OCIStores[id] = store
	opt.FrontendAttrs["context:"+name] = "oci-layout://" + id + "@" + digest
	return nil
}

func splitLayout(value string) (dir, tag, digest string) {
	if dir, digest, ok := strings.Cut(value, "@"); ok {
		return dir, "", digest
	}
	if i := strings.LastIndexByte(value, ':'); i > strings.LastIndexByte(value, '/') {
		return value[:i], value[i+1:], ""
	}
	return value, "", ""
}

// refNameAnnotation is where a layout keeps the tag of an image.
const refNameAnnotation = "org.opencontainers.image.ref.name"

// layoutDigest finds an image of a layout by tag; with no tag, the only one,
// whatever names it goes by, or the one tagged latest.
func layoutDigest(path layout.Path, tag string) (v1.Hash, error) {
	index, err := path.ImageIndex()
	if err != nil {
		return v1.Hash{}, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	other := func(d v1.Descriptor) bool { return d.Digest != m.Manifests[0].Digest }
	if tag == "" && len(m.Manifests) > 0 && !slices.ContainsFunc(m.Manifests, other) {
		return m.Manifests[0].Digest, nil
	}
	if tag == "" {
		tag = "latest"
	}
	var tags []string
	for _, d := range m.Manifests {
		if taggedAs(d, tag) {
			return d.Digest, nil
		}
		tags = append(tags, d.Annotations[refNameAnnotation])
	}
	return v1.Hash{}, fmt.Errorf("no image is tagged %s; there are: %s", tag, strings.Join(tags, ", "))
}

func taggedAs(d v1.Descriptor, tag string) bool {
	name := d.Annotations[refNameAnnotation]
	return name == tag || strings.HasSuffix(name, ":"+tag)
}
