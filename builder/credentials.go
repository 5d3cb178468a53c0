package builder

import (
	"os"
	"os/user"
	"path/filepath"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/auth/authprovider"
)

// dockerConfig loads the docker configuration of the user: that of
// DOCKER_CONFIG, else of the home directory, else of who called sudo. One that
// cannot be read is as good as none, as it is for docker.
func dockerConfig() *configfile.ConfigFile {
	dirs := []string{os.Getenv("DOCKER_CONFIG")}
	if dirs[0] == "" {
		dirs = nil
		if home, err := os.UserHomeDir(); err == nil {
			dirs = append(dirs, filepath.Join(home, ".docker"))
		}
		if u, err := user.Lookup(os.Getenv("SUDO_USER")); err == nil {
			dirs = append(dirs, filepath.Join(u.HomeDir, ".docker"))
		}
	}
	for _, dir := range dirs {
		if !isFile(filepath.Join(dir, config.ConfigFileName)) {
			continue
		}
		if cfg, err := config.Load(dir); err == nil {
			return cfg
		}
	}
	return configfile.New("")
}

// credentials answers the engine when a registry asks who we are.
func credentials() session.Attachable {
	return authprovider.NewDockerAuthProvider(authprovider.DockerAuthProviderConfig{
		AuthConfigProvider: authprovider.LoadAuthConfig(dockerConfig()),
	})
}

// keychain answers our own requests from the same configuration.
type keychain struct{ cfg *configfile.ConfigFile }

// Resolve implements authn.Keychain.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	key := r.RegistryStr()
	if key == name.DefaultRegistry {
		key = authn.DefaultAuthKey
	}
	c, err := k.cfg.GetAuthConfig(key)
	if err != nil {
		return nil, err
	}
	c.ServerAddress = "" // only says where it is from
	if c == (types.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(authn.AuthConfig{
		Username: c.Username, Password: c.Password, Auth: c.Auth,
		IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
	}), nil
}
