package builder

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
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
	// what SIETCH_ENGINE_IDLE says (as "2s"), or thirty seconds.
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
		if text := os.Getenv("SIETCH_ENGINE_IDLE"); text != "" {
			if o.EngineIdle, err = time.ParseDuration(text); err != nil || o.EngineIdle <= 0 {
				return nil, fmt.Errorf("open builder: SIETCH_ENGINE_IDLE is %q, which is no time", text)
			}
		}
	}
	s, err := openStore(dir, o.Logger, o.Now)
	if err != nil {
		return nil, err
	}
	// What the engine's libraries have to say in this process is for nobody.
	quietLibraries()
	return &Builder{opts: o, log: o.Logger, store: s}, nil
}

// quietLibraries keeps BuildKit and containerd, which log through one global
// logger, off the user's standard error. Nothing else uses that logger.
var quietLibraries = sync.OnceFunc(func() { logrus.SetOutput(io.Discard) })

// Dir is the data directory, as an absolute path.
func (b *Builder) Dir() string { return b.opts.Dir }

// Sweep removes what operations that were killed left in the store and in its
// temporary files; an engine that starts does the same. Safe beside operations
// that run.
func (b *Builder) Sweep() error {
	if err := b.store.sweep(); err != nil {
		return fmt.Errorf("sweep images: %w", err)
	}
	return nil
}

// Close releases what the Builder holds. Idempotent. An engine process started
// by it ends by itself when idle.
func (b *Builder) Close() error { return nil }
