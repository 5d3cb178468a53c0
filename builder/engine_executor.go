package builder

import (
	"context"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/buildkit/executor"
	resourcestypes "github.com/moby/buildkit/executor/resources/types"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/sys/user"
)

// stepCABundle is where a build step finds the host's certificate bundle: in
// /dev, which is a tmpfs made for the step, so that nothing of it gets into the
// image, not even an empty file to mount on.
const stepCABundle = "/dev/sietch-ca-certificates.crt"

// stepExecutor runs build steps with the host's network as it is and with the
// private certificate authorities of the host, if it has any. Both are added
// below the level at which steps are hashed, so the cache does not depend on
// the host.
type stepExecutor struct {
	executor.Executor
}

// Run implements executor.Executor.
func (e *stepExecutor) Run(ctx context.Context, id string, root executor.Mount, mounts []executor.Mount, p executor.ProcessInfo, started chan<- struct{}) (resourcestypes.Recorder, error) {
	if p.Meta.NetMode == pb.NetMode_UNSET {
		// The same network by its own name: else a resolver on the loopback
		// address would be replaced by public ones.
		p.Meta.NetMode = pb.NetMode_HOST
	}
	if bundle := HostCABundle(); bundle != "" {
		mounts = append(mounts[:len(mounts):len(mounts)], executor.Mount{
			Src: hostFile(bundle), Dest: stepCABundle, Readonly: true,
		})
		env := p.Meta.Env
		p.Meta.Env = append(env[:len(env):len(env)], CAEnvironment(stepCABundle, env)...)
	}
	return e.Executor.Run(ctx, id, root, mounts, p, started)
}

// hostFile is a file of the host as the source of a mount.
type hostFile string

// Mount implements executor.Mountable.
func (f hostFile) Mount(context.Context, bool) (executor.MountableRef, error) { return f.ref(), nil }

func (f hostFile) ref() executor.MountableRef { return hostFileRef(f) }

type hostFileRef string

func (f hostFileRef) Mount() ([]mount.Mount, func() error, error) {
	m := mount.Mount{Type: "bind", Source: string(f), Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}
	return []mount.Mount{m}, func() error { return nil }, nil
}

func (hostFileRef) IdentityMapping() *user.IdentityMapping { return nil }
