package builder

import (
	"encoding/json"
	"fmt"
	"sort"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

// configFromOCI takes what we keep from an OCI or Docker image configuration,
// and the architecture.
func configFromOCI(raw []byte) (Config, string, error) {
	var f dockerspec.DockerOCIImage
	if err := json.Unmarshal(raw, &f); err != nil {
		return Config{}, "", fmt.Errorf("read image configuration: %w", err)
	}
	if f.OS != "" && f.OS != "linux" {
		return Config{}, "", fmt.Errorf("read image configuration: the image is for %s, not linux", f.OS)
	}
	c := Config{
		Env: f.Config.Env, Entrypoint: f.Config.Entrypoint, Cmd: f.Config.Cmd, User: f.Config.User,
		WorkingDir: f.Config.WorkingDir, StopSignal: f.Config.StopSignal, Labels: f.Config.Labels,
		ExposedPorts: keys(f.Config.ExposedPorts), Volumes: keys(f.Config.Volumes),
		Shell: f.Config.Shell, OnBuild: f.Config.OnBuild,
	}
	if h := f.Config.Healthcheck; h != nil {
		c.Healthcheck = (*Healthcheck)(h)
	}
	return c, f.Architecture, nil
}

// ociConfig is the other way round, for an image of the given layers.
func ociConfig(img Image, diffIDs []digest.Digest) ([]byte, error) {
	c := img.Config
	out := dockerspec.DockerOCIImage{
		Image: ocispecs.Image{
			Created:  &img.Created,
			Platform: ocispecs.Platform{Architecture: img.Architecture, OS: "linux"},
			RootFS:   ocispecs.RootFS{Type: "layers", DiffIDs: diffIDs},
		},
		Config: dockerspec.DockerOCIImageConfig{
			ImageConfig: ocispecs.ImageConfig{
				Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User, WorkingDir: c.WorkingDir,
				StopSignal: c.StopSignal, Labels: c.Labels, ExposedPorts: set(c.ExposedPorts), Volumes: set(c.Volumes),
			},
			DockerOCIImageConfigExt: dockerspec.DockerOCIImageConfigExt{
				Healthcheck: (*dockerspec.HealthcheckConfig)(c.Healthcheck), Shell: c.Shell, OnBuild: c.OnBuild,
			},
		},
	}
	for range diffIDs {
		out.History = append(out.History, ocispecs.History{Created: &img.Created, CreatedBy: "sietch"})
	}
	return json.Marshal(out)
}

func keys(m map[string]struct{}) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func set(list []string) map[string]struct{} {
	if len(list) == 0 {
		return nil
	}
	out := map[string]struct{}{}
	for _, k := range list {
		out[k] = struct{}{}
	}
	return out
}
