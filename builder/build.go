package builder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/secrets/secretsprovider"
	"github.com/moby/buildkit/session/upload/uploadprovider"
	"github.com/moby/buildkit/util/entitlements"
	"github.com/moby/buildkit/util/staticfs"
	"github.com/tonistiigi/fsutil"
	fstypes "github.com/tonistiigi/fsutil/types"
)

// BuildRequest is one build.
type BuildRequest struct {
	// ContextDir is the build context, a directory. When it is "-", Context is
	// read: a tar stream, compressed or not, or a lone Dockerfile.
	ContextDir string
	Context    io.Reader
	// Dockerfile is the path of the file; empty is ContextDir/Dockerfile. A
	// relative path is of the working directory, or of the context when it
	// exists only there. "-" reads it from Context.
	Dockerfile string
	// Called is what errors call the Dockerfile; empty: its path.
	Called string
	// Names the image gets, NAME[:TAG].
	Names  []string
	Target string
	// BuildArgs as --build-arg.
	BuildArgs map[string]string
	Secrets   []Secret
	// BuildContexts are named contexts: a directory, "oci-layout://DIR[:TAG]",
	// "docker-image://NAME", where local images come first, or an URL.
	BuildContexts map[string]string
	NoCache       bool
	// Progress is "auto" (also ""), "plain", "rawjson" or "quiet".
	Progress string
	// ProgressOut is where it goes; os.Stderr when nil. A terminal is noticed
	// when it is an *os.File.
	ProgressOut io.Writer
}

// Secret is a --secret. Source is a file; otherwise Env is the name of an
// environment variable; with neither, the variable named ID if set, else the
// file.
type Secret struct {
	ID, Source, Env string
}

// Build makes an image from a Dockerfile. A build whose steps are all cached
// gives the image it gave before. On error nothing is added to the store.
//
// ErrInvalidRequest, ErrInvalidName, ErrDockerfile, ErrImageNotFound and
// ErrUnreachable for a base image, ErrMissingTool, ErrNotRoot, ErrEngine.
func (b *Builder) Build(ctx context.Context, r BuildRequest) (Image, error) {
	opt, names, err := r.solveOpt()
	if err != nil {
		return Image{}, err
	}
	img, err := b.solve(ctx, nil, opt, names, nil, r.display())
	if errors.Is(err, errStalled) && r.Context == nil {
		b.log.Warn("build is started again", "err", err)
		// What was uploaded is cached, and sessions are not used twice.
		if opt, names, err = r.solveOpt(); err == nil {
			img, err = b.solve(ctx, nil, opt, names, nil, r.display())
		}
	}
	if err != nil {
		return Image{}, explainBuild(b.opts.Dir, r, err)
	}
	return img, nil
}

func (r BuildRequest) display() display {
	return display{mode: r.Progress, out: r.ProgressOut}
}

// solveOpt checks a request as a whole and translates it.
func (r BuildRequest) solveOpt() (client.SolveOpt, []string, error) {
	var wrong []error
	note := func(field string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", field, err))
		}
	}
	attrs := map[string]string{
		// Without it a "# syntax=" line would fetch another frontend.
		"cmdline": "dockerfile.v0",
	}
	opt := client.SolveOpt{
		Frontend:            "dockerfile.v0",
		FrontendAttrs:       attrs,
		LocalMounts:         map[string]fsutil.FS{},
		AllowedEntitlements: []string{entitlements.EntitlementNetworkHost.String()},
		Session:             []session.Attachable{credentials()},
	}
	var names []string
	for _, n := range r.Names {
		full, err := ParseName(n)
		note("name", err)
		names = append(names, full)
	}
	note("progress", display{mode: r.Progress}.check())
	note("context", r.addContext(&opt))
	secrets, err := r.secrets()
	note("secret", err)
	opt.Session = append(opt.Session, secrets...)
	for k, v := range r.BuildArgs {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			note("build argument", fmt.Errorf("%q is no name", k))
		}
		attrs["build-arg:"+k] = v
	}
	for k, v := range r.BuildContexts {
		note("build context "+k, addNamedContext(&opt, k, v))
	}
	if r.Target != "" {
		attrs["target"] = r.Target
	}
	if r.NoCache {
		attrs["no-cache"] = ""
	}
	if len(wrong) > 0 {
		return client.SolveOpt{}, nil, fmt.Errorf("build: %w: %w", ErrInvalidRequest, errors.Join(wrong...))
	}
	return opt, names, nil
}

// addContext adds the main context and the Dockerfile.
func (r BuildRequest) addContext(opt *client.SolveOpt) error {
	if r.ContextDir == "-" {
		if r.Context == nil {
			return errors.New("nothing to read it from")
		}
		if r.Dockerfile == "-" {
			return errors.New("it and the Dockerfile cannot both be read from standard input")
		}
		// The frontend looks whether it is an archive or a Dockerfile.
		up := uploadprovider.New()
		opt.FrontendAttrs["context"] = up.Add(io.NopCloser(r.Context))
		if r.Dockerfile != "" {
			opt.FrontendAttrs["filename"] = r.Dockerfile
		}
		opt.Session = append(opt.Session, up)
		return nil
	}
	fs, err := directoryFS(r.ContextDir)
	if err != nil {
		return err
	}
	opt.LocalMounts["context"] = fs
	if r.Dockerfile == "-" {
		return r.addDockerfileText(opt)
	}
	path, err := r.dockerfilePath()
	if err != nil {
		return err
	}
	if opt.LocalMounts["dockerfile"], err = directoryFS(filepath.Dir(path)); err != nil {
		return err
	}
	opt.FrontendAttrs["filename"] = filepath.Base(path)
	return nil
}

// dockerfilePath finds the Dockerfile of a context directory.
func (r BuildRequest) dockerfilePath() (string, error) {
	name := r.Dockerfile
	candidates := []string{name, filepath.Join(r.ContextDir, name)}
	if name == "" {
		candidates = []string{filepath.Join(r.ContextDir, "Dockerfile")}
	}
	for _, p := range candidates {
		st, err := os.Stat(p)
		if err == nil && st.IsDir() {
			return "", fmt.Errorf("the Dockerfile %s is a directory", p)
		}
		if err == nil {
			// A link may lead out of the directory that is uploaded.
			if p, err = filepath.EvalSymlinks(p); err != nil {
				return "", fmt.Errorf("open Dockerfile: %w", err)
			}
			return filepath.Abs(p)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("open Dockerfile: %w", err)
		}
	}
	return "", withHint(fmt.Errorf("%w: there is no %s", ErrDockerfile, candidates[0]), "name it with -f")
}

// addDockerfileText passes a Dockerfile that is no file beside a context that
// is a directory.
func (r BuildRequest) addDockerfileText(opt *client.SolveOpt) error {
	if r.Context == nil {
		return errors.New("nothing to read the Dockerfile from")
	}
	text, err := io.ReadAll(io.LimitReader(r.Context, 4<<20))
	if err != nil {
		return fmt.Errorf("read Dockerfile: %w", err)
	}
	fs := staticfs.NewFS()
	fs.Add("Dockerfile", &fstypes.Stat{Mode: 0o600}, text)
	opt.LocalMounts["dockerfile"] = fs
	return nil
}

func directoryFS(dir string) (fsutil.FS, error) {
	if dir == "" {
		return nil, errors.New("no directory given")
	}
	st, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	return fsutil.NewFS(dir)
}

// addNamedContext adds one --build-context.
func addNamedContext(opt *client.SolveOpt, name, value string) error {
	if name == "" || strings.ContainsAny(name, "\x00=") {
		return fmt.Errorf("%q is no name", name)
	}
	key := "context:" + name
	switch {
	case strings.HasPrefix(value, "docker-image://"), strings.HasPrefix(value, "http://"), strings.HasPrefix(value, "https://"),
		strings.HasPrefix(value, "git://"), strings.HasPrefix(value, "ssh://"), strings.HasPrefix(value, "git@"):
		opt.FrontendAttrs[key] = value
		return nil
	case strings.HasPrefix(value, "oci-layout://"):
		return addLayoutContext(opt, name, strings.TrimPrefix(value, "oci-layout://"))
	}
	fs, err := directoryFS(value)
	if err != nil {
		return err
	}
	local := fmt.Sprintf("context-%d", len(opt.LocalMounts))
	opt.LocalMounts[local] = fs
	opt.FrontendAttrs[key] = "local:" + local
	return nil
}

func (r BuildRequest) secrets() ([]session.Attachable, error) {
	if len(r.Secrets) == 0 {
		return nil, nil
	}
	var sources []secretsprovider.Source
	for _, s := range r.Secrets {
		sources = append(sources, secretsprovider.Source{ID: s.ID, FilePath: s.Source, Env: s.Env})
		if s.Source == "" && s.Env != "" {
			if _, ok := os.LookupEnv(s.Env); !ok {
				return nil, fmt.Errorf("%s: the environment has no %s", s.ID, s.Env)
			}
		}
	}
	store, err := secretsprovider.NewStore(sources)
	if err != nil {
		return nil, err
	}
	return []session.Attachable{secretsprovider.NewSecretProvider(store)}, nil
}

// solve runs one build in the engine and adds its result to the store. config,
// when not nil, is that of an image which did not come out of a Dockerfile.
func (b *Builder) solve(ctx context.Context, def *llb.Definition, opt client.SolveOpt, names []string, config []byte, d display) (Image, error) {
	e, err := b.connect(ctx)
	if err != nil {
		return Image{}, err
	}
	defer e.Close()
	out, release, err := b.store.tempDir()
	if err != nil {
		return Image{}, err
	}
	defer release()
	opt.Exports = []client.ExportEntry{{Type: exporterType, Attrs: map[string]string{attrOutput: out}}}
	opt.FrontendAttrs = maps.Clone(opt.FrontendAttrs)
	if opt.FrontendAttrs == nil {
		opt.FrontendAttrs = map[string]string{}
	}

	resp, err := d.watch(ctx, func(ctx context.Context, status chan *client.SolveStatus) (*client.SolveResponse, error) {
		return guardUploads(ctx, status, func(ctx context.Context, status chan *client.SolveStatus) (*client.SolveResponse, error) {
			return e.Solve(ctx, def, opt, status)
		})
	})
	if err != nil {
		if ctx.Err() != nil {
			return Image{}, fmt.Errorf("build: %w", context.Cause(ctx))
		}
		if e.lost.Load() {
			return Image{}, engineFailed("it ended during the build", e.log)
		}
		return Image{}, err
	}
	var info rootfsInfo
	if err := json.Unmarshal([]byte(resp.ExporterResponse[responseRootfs]), &info); err != nil {
		return Image{}, fmt.Errorf("%w: it returned no image: %w", ErrEngine, err)
	}
	if config == nil {
		config = []byte(resp.ExporterResponse[responseConfig])
	}
	c, arch, err := configFromOCI(config)
	if err != nil {
		return Image{}, err
	}
	return b.store.add(out, info, arch, c, names)
}

// explainBuild gives a failed build its lines of the Dockerfile and its
// sentinel.
func explainBuild(dir string, r BuildRequest, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrEngine) || errors.Is(err, ErrNotRoot) {
		return err
	}
	var lines bytes.Buffer
	printSources(&lines, err)
	// A full disk makes anything fail, in words of its own.
	err = noteSpace(dir, err)
	if d, ok := detailOf(err); ok {
		if lines.Len() > 0 {
			return fmt.Errorf("build: %w\n%s", d, strings.TrimRight(lines.String(), "\n"))
		}
		return fmt.Errorf("build: %w", d)
	}
	where := cmp.Or(r.Called, r.Dockerfile, "Dockerfile")
	return &buildError{where: where, lines: lines.String(), cause: err}
}
