package remote

import (
	"context"
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
)

// GC frees what nothing needs.
func (e *Engine) GC(ctx context.Context, dryRun bool) (runtime.GCReport, error) {
	return ask[runtime.GCReport](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Gc(ctx, &client.GcParams{DryRun: dryRun}, with)
	})
}

// Fsck checks what is stored.
func (e *Engine) Fsck(ctx context.Context) (runtime.FsckReport, error) {
	return ask[runtime.FsckReport](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Fsck(ctx, with)
	})
}

// DiskUsage splits the data directory by use.
func (e *Engine) DiskUsage(ctx context.Context) (runtime.UsageReport, error) {
	return ask[runtime.UsageReport](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Du(ctx, with)
	})
}

// Doctor says how the host looks to the server.
func (e *Engine) Doctor(ctx context.Context) (runtime.DoctorReport, error) {
	return ask[runtime.DoctorReport](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Doctor(ctx, with)
	})
}
