package builder

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// EngineCommand is the first argument of the re-executed binary that hosts the
// build engine; see [EngineMain].
const EngineCommand = "buildkit-engine"

// Options configure a [Builder]. Only Dir is needed.
type Options struct {
	// Dir is the data directory. Made with mode 0700 when missing.
	Dir string
	// Logger receives what is of interest to who debugs; discarded when nil.
	Logger *slog.Logger
	// CacheLimitBytes bounds the build cache; 0 is 10 GiB.
	CacheLimitBytes int64
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Engine is the command that ends in EngineMain, without its arguments.
	// By default the running executable with EngineCommand.
	Engine []string
	// EngineIdle is how long a new engine process stays without work; 0 is
	// thirty seconds.
	EngineIdle time.Duration
}

const (
	defaultCacheLimit = 10 << 30
	defaultEngineIdle = 30 * time.Second
)

// Builder builds, imports and keeps images.
type Builder struct {
	opts  Options
	log   *slog.Logger
	store *store
}

// Open prepares the data directory and returns a Builder on it. It takes
// milliseconds, starts no process and holds no lock.
func Open(o Options) (*Builder, error) {
	if o.Dir == "" {
		return nil, errors.New("open builder: no data directory given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open builder: %w", err)
	}
	o.Dir = dir
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CacheLimitBytes == 0 {
		o.CacheLimitBytes = defaultCacheLimit
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.EngineIdle == 0 {
		o.EngineIdle = defaultEngineIdle
	}
	s, err := openStore(dir, o.Logger, o.Now)
	if err != nil {
		return nil, err
	}
	return &Builder{opts: o, log: o.Logger, store: s}, nil
}

// Dir is the data directory, as an absolute path.
func (b *Builder) Dir() string { return b.opts.Dir }

// Close releases what the Builder holds. Idempotent. An engine process started
// by it ends by itself when idle.
func (b *Builder) Close() error { return nil }
