package builder

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	ctdsnapshot "github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/executor/oci"
	"github.com/moby/buildkit/exporter"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/solver"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/network/netproviders"
	"github.com/moby/buildkit/version"
	"github.com/moby/buildkit/worker"
	"github.com/moby/buildkit/worker/base"
	"github.com/moby/buildkit/worker/runc"
)

// newWorker makes BuildKit's worker on root. The call of NewWorkerOpt is the
// part that changes from one BuildKit release to the next; it stays here.
func newWorker(ctx context.Context, root string, hosts docker.RegistryHosts, policy []client.PruneInfo) (*base.Worker, error) {
	opt, err := runc.NewWorkerOpt(
		root,
		snapshotter(root),
		false,              // rootless
		oci.ProcessSandbox, // a step sees its own processes only
		nil,                // labels
		nil,                // id mapping
		netproviders.Opt{Mode: "host"},
		nil,    // DNS: the host's
		"runc", // binary
		"",     // AppArmor profile
		false,  // SELinux
		nil,    // parallelism: not limited
		"",     // trace socket
		"",     // cgroup parent: the default
		nil,    // CDI devices
	)
	if err != nil {
		return nil, fmt.Errorf("prepare build worker: %w", err)
	}
	opt.RegistryHosts = hosts
	opt.GCPolicy = policy
	opt.BuildkitVersion = client.BuildkitVersion{Package: version.Package, Version: version.Version}
	opt.Executor = &stepExecutor{opt.Executor}
	w, err := base.NewWorker(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("start build worker: %w", err)
	}
	return w, nil
}

// snapshotter takes overlayfs where the file system of root can carry it, else
// plain copies, which work everywhere and need 2.4 times the space.
func snapshotter(root string) runc.SnapshotterFactory {
	if err := overlayutils.Supported(root); err != nil {
		return runc.SnapshotterFactory{Name: "native", New: native.NewSnapshotter}
	}
	return runc.SnapshotterFactory{Name: "overlayfs", New: func(root string) (ctdsnapshot.Snapshotter, error) {
		return overlay.NewSnapshotter(root, overlay.AsynchronousRemove)
	}}
}

// imageWorker adds to BuildKit's worker our exporter, and errors about base
// images that say what is wrong with them.
type imageWorker struct {
	*base.Worker
	exporter *rootfsExporter
}

var _ worker.Worker = (*imageWorker)(nil)

// Exporter implements worker.Worker.
func (w *imageWorker) Exporter(name string, sm *session.Manager) (exporter.Exporter, error) {
	if name == exporterType {
		return w.exporter, nil
	}
	return w.Worker.Exporter(name, sm)
}

// ResolveSourceMetadata implements worker.Worker.
func (w *imageWorker) ResolveSourceMetadata(ctx context.Context, op *pb.SourceOp, opt sourceresolver.Opt, sm *session.Manager, job solver.JobContext) (*sourceresolver.MetaResponse, error) {
	resp, err := w.Worker.ResolveSourceMetadata(ctx, op, opt, sm, job)
	if err != nil {
		return nil, explainResolve(op.GetIdentifier(), err)
	}
	return resp, nil
}
