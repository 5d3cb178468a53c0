package builder

import (
	"context"
	"fmt"

	"github.com/moby/buildkit/client"
)

// CacheUsage says how large the build cache is.
type CacheUsage struct {
	Bytes            int64
	ReclaimableBytes int64
	Records          int
}

// CacheUsage reports the build cache. It needs the engine and starts it.
func (b *Builder) CacheUsage(ctx context.Context) (CacheUsage, error) {
	e, err := b.connect(ctx)
	if err != nil {
		return CacheUsage{}, err
	}
	defer e.Close()
	records, err := e.DiskUsage(ctx)
	if err != nil {
		return CacheUsage{}, fmt.Errorf("measure build cache: %w", err)
	}
	var out CacheUsage
	for _, r := range records {
		out.Records++
		out.Bytes += r.Size
		if !r.InUse {
			out.ReclaimableBytes += r.Size
		}
	}
	return out, nil
}

// PruneCache empties the build cache down to keepBytes (0: everything that is
// not in use) and returns how much was freed. Images are not touched.
func (b *Builder) PruneCache(ctx context.Context, keepBytes int64) (int64, error) {
	e, err := b.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	freed := int64(0)
	ch := make(chan client.UsageInfo)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u := range ch {
			freed += u.Size
		}
	}()
	opts := []client.PruneOption{client.PruneAll}
	if keepBytes > 0 {
		opts = append(opts, client.WithKeepOpt(0, 0, keepBytes, 0))
	}
	err = e.Prune(ctx, ch, opts...)
	close(ch)
	<-done
	if err != nil {
		return freed, fmt.Errorf("prune build cache: %w", err)
	}
	return freed, nil
}
