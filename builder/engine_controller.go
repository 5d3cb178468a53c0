package builder

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/cmd/buildkitd/config"
	"github.com/moby/buildkit/control"
	"github.com/moby/buildkit/frontend"
	dockerfile "github.com/moby/buildkit/frontend/dockerfile/builder"
	"github.com/moby/buildkit/frontend/gateway"
	"github.com/moby/buildkit/frontend/gateway/forwarder"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/solver"
	"github.com/moby/buildkit/solver/bboltcachestorage"
	"github.com/moby/buildkit/util/db/boltutil"
	"github.com/moby/buildkit/util/entitlements"
	"github.com/moby/buildkit/worker"
	bolt "go.etcd.io/bbolt"
)

// solverStack is BuildKit put together: one worker, the Dockerfile frontend, a
// cache in DIR/buildkit/state and the gRPC controller over them.
type solverStack struct {
	worker     *imageWorker
	controller *control.Controller
	policy     []client.PruneInfo
}

// newSolverStack opens everything below root, an absolute path: relative ones
// break bind mounts of build steps.
func newSolverStack(ctx context.Context, root string, s *store, cacheLimit int64) (_ *solverStack, err error) {
	policy := cachePolicy(cacheLimit)
	bw, err := newWorker(ctx, root, registryHosts(s), policy)
	if err != nil {
		return nil, err
	}
	// Until the controller owns them, what was opened is closed here.
	var opened []func() error
	opened = append(opened, bw.Close)
	defer func() {
		if err != nil {
			for i := len(opened) - 1; i >= 0; i-- {
				err = errors.Join(err, opened[i]())
			}
		}
	}()
	w := &imageWorker{Worker: bw, exporter: &rootfsExporter{store: s, results: filepath.Join(root, "results")}}
	wc := &worker.Controller{}
	if err := wc.Add(w); err != nil {
		return nil, fmt.Errorf("start build worker: %w", err)
	}
	gw, err := gateway.NewGatewayFrontend(wc.Infos(), nil)
	if err != nil {
		return nil, fmt.Errorf("start frontend: %w", err)
	}
	sm, err := session.NewManager()
	if err != nil {
		return nil, fmt.Errorf("start session manager: %w", err)
	}
	cache, err := bboltcachestorage.NewStore(filepath.Join(root, "cache.db"))
	if err != nil {
		return nil, fmt.Errorf("open build cache: %w", err)
	}
	opened = append(opened, cache.Close)
	history, err := boltutil.SafeOpen(filepath.Join(root, "history.db"), 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return nil, fmt.Errorf("open build history: %w", err)
	}
	opened = append(opened, history.Close)

	noHistory := int64(0)
	c, err := control.NewController(control.Opt{
		SessionManager:   sm,
		WorkerController: wc,
		Frontends: map[string]frontend.Frontend{
			"dockerfile.v0": forwarder.NewGatewayForwarder(wc.Infos(), dockerfile.Build),
			"gateway.v0":    gw,
		},
		CacheManager: solver.NewCacheManager(ctx, "local", cache, worker.NewCacheResultStorage(wc)),
		// Steps are on the host's network anyway; this lets a Dockerfile say so.
		Entitlements:   []string{entitlements.EntitlementNetworkHost.String()},
		HistoryDB:      history,
		HistoryConfig:  &config.HistoryConfig{MaxEntries: &noHistory},
		CacheStore:     cache,
		LeaseManager:   w.LeaseManager(),
		ContentStore:   w.ContentStore(),
		GarbageCollect: w.GarbageCollect,
		GracefulStop:   ctx.Done(),
	})
	if err != nil {
		return nil, fmt.Errorf("start build controller: %w", err)
	}
	return &solverStack{worker: w, controller: c, policy: policy}, nil
}

// cachePolicy keeps the cache under the limit, and throws uploaded contexts and
// cache mounts that nobody used for two days away first.
func cachePolicy(limit int64) []client.PruneInfo {
	return []client.PruneInfo{
		{
			Filter:       []string{"type==source.local,type==exec.cachemount,type==source.git.checkout"},
			KeepDuration: 48 * 3600 * 1e9,
			MaxUsedSpace: limit / 4,
		},
		{All: true, MaxUsedSpace: limit},
	}
}

// prune applies the policy. BuildKit itself only does so on timers, which a
// process that lives for seconds never reaches.
func (s *solverStack) prune(ctx context.Context) error {
	ch := make(chan client.UsageInfo)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range ch {
		}
	}()
	err := s.worker.Prune(ctx, ch, s.policy...)
	close(ch)
	<-done
	return err
}
