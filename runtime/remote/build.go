package remote

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
)

// Places in the archive of a build.
const (
	inContext    = "context"
	inDockerfile = "dockerfile"
	inNamed      = "named"
)

// Build makes an image from a Dockerfile. Directories are read here: they go to
// the server as one archive, without what .dockerignore leaves out.
func (e *Engine) Build(ctx context.Context, r runtime.BuildRequest) (runtime.Image, error) {
	switch {
	case r.ContextDir == "" && r.Context == nil:
		return runtime.Image{}, &runtime.Error{Kind: runtime.ErrUsage, Message: "no build context given"}
	case r.ContextDir != "" && r.Context != nil:
		return runtime.Image{}, &runtime.Error{Kind: runtime.ErrUsage, Message: "two build contexts given: a directory and a stream"}
	}
	q := client.BuildImageParams{
		Name: r.Names, Context: r.ContextPath, Dockerfile: r.Dockerfile, Target: r.Target, NoCache: r.NoCache,
		Progress: client.BuildImageParamsProgress(r.Progress),
	}
	for _, k := range slices.Sorted(maps.Keys(r.BuildArgs)) {
		q.BuildArg = append(q.BuildArg, k+"="+r.BuildArgs[k])
	}
	var err error
	if q.SietchBuildSecrets, err = secrets(r.Secrets); err != nil {
		return runtime.Image{}, err
	}
	fill := copied(r.Context)
	var trees []tree
	if r.Context == nil {
		if trees, err = contextTrees(r, &q); err != nil {
			return runtime.Image{}, err
		}
	}
	named, err := namedContexts(r, &q)
	if err != nil {
		return runtime.Image{}, err
	}
	if trees = append(trees, named...); r.Context == nil {
		fill = func(w io.Writer) error { return pack(w, trees) }
	}
	if r.ProgressOut == nil {
		r.ProgressOut = os.Stderr
	}
	show, end := e.display(r, &q)
	image, err := sendFor(ctx, e, fill, func(ctx context.Context, in io.Reader, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.BuildImageWithBody(ctx, &q, tarred, in, with)
	}, made(show))
	end()
	if q.Dockerfile != r.Dockerfile && r.Dockerfile != "" {
		err = renamed(err, "build "+q.Dockerfile, "build "+r.Dockerfile)
	}
	return image, err
}

// display is where progress goes. At a terminal the display is made here, of
// what the server reports in full.
func (e *Engine) display(r runtime.BuildRequest, q *client.BuildImageParams) (show io.Writer, end func()) {
	switch r.Progress {
	case "", "auto":
		q.Progress = "plain"
		if f, ok := r.ProgressOut.(*os.File); ok {
			if w, wait := runtime.ShowBuild(f); w != nil {
				q.Progress = "rawjson"
				return w, wait
			}
		}
	}
	return r.ProgressOut, func() {}
}

// secrets reads the secrets of a build, for a header.
func secrets(list []runtime.BuildSecret) (string, error) {
	if len(list) == 0 {
		return "", nil
	}
	values := map[string][]byte{}
	for _, s := range list {
		var err error
		var value []byte
		if s.Env != "" {
			value = []byte(os.Getenv(s.Env))
		} else if value, err = os.ReadFile(s.Source); err != nil {
			return "", &runtime.Error{Kind: runtime.ErrUsage, Message: "build: secret " + s.ID, Err: err}
		}
		values[s.ID] = value
	}
	data, err := json.Marshal(values)
	return base64.StdEncoding.EncodeToString(data), err
}

// tree is a directory or file in the archive of a build.
type tree struct {
	path, name string
	skip       func(path string, dir bool) bool
}

// contextTrees are context and Dockerfile of a build from a directory.
func contextTrees(r runtime.BuildRequest, q *client.BuildImageParams) ([]tree, error) {
	file := r.Dockerfile
	if file == "" {
		file = filepath.Join(r.ContextDir, "Dockerfile")
	}
	skip, err := ignored(r.ContextDir, file)
	if err != nil {
		return nil, err
	}
	trees := []tree{{path: r.ContextDir, name: inContext, skip: skip}}
	q.Context, q.Dockerfile = inContext, ""
	if r.Dockerfile == "" {
		return trees, nil
	}
	// It may be anywhere; what belongs to it is beside it.
	q.Dockerfile = path.Join(inDockerfile, filepath.Base(file))
	trees = append(trees, tree{path: file, name: q.Dockerfile})
	if rules := file + ".dockerignore"; exists(rules) {
		trees = append(trees, tree{path: rules, name: q.Dockerfile + ".dockerignore"})
	}
	return trees, nil
}

func exists(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// namedContexts are the further contexts; those that are directories go along.
func namedContexts(r runtime.BuildRequest, q *client.BuildImageParams) ([]tree, error) {
	var trees []tree
	for _, name := range slices.Sorted(maps.Keys(r.BuildContexts)) {
		source := r.BuildContexts[name]
		if dir, layout := strings.CutPrefix(source, "oci-layout://"); layout || !strings.Contains(source, "://") {
			if r.Context != nil {
				return nil, &runtime.Error{Kind: runtime.ErrUsage, Message: fmt.Sprintf("build context %s: %s cannot go with a context from a stream while a server runs", name, source),
					Hint: "build from a directory, or end sietch serve"}
			}
			if layout {
				return nil, &runtime.Error{Kind: runtime.ErrUsage, Message: fmt.Sprintf("build context %s: %s cannot be read by the server", name, dir),
					Hint: "import it with sietch image import, or end sietch serve"}
			}
			skip, err := ignored(dir, "")
			if err != nil {
				return nil, err
			}
			at := path.Join(inNamed, strconv.Itoa(len(trees)))
			trees = append(trees, tree{path: source, name: at, skip: skip})
			source = "./" + at
		}
		q.BuildContext = append(q.BuildContext, name+"="+source)
	}
	return trees, nil
}

// pack writes the archive.
func pack(w io.Writer, trees []tree) error {
	tw := tar.NewWriter(w)
	made := map[string]bool{}
	for _, t := range trees {
		if parent := path.Dir(t.name); parent != "." && !made[parent] {
			made[parent] = true
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent + "/", Mode: 0o755}); err != nil {
				return err
			}
		}
		o := tartree.PackOptions{Path: t.path, FollowLink: true, Name: t.name, Skip: t.skip, Exact: true}
		if err := tartree.Add(tw, o); err != nil {
			return fmt.Errorf("read build context: %w", err)
		}
	}
	return tw.Close()
}

// ignored says what the build will not look at, so that it need not be sent. The
// server decides again: what is sent too much does no harm, so a directory is
// only left out where no rule takes something in it back.
func ignored(dir, dockerfile string) (func(string, bool) bool, error) {
	rules, err := readRules(dockerfile + ".dockerignore")
	if dockerfile == "" || errors.Is(err, fs.ErrNotExist) {
		rules, err = readRules(filepath.Join(dir, ".dockerignore"))
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(rules) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &runtime.Error{Kind: runtime.ErrUsage, Message: "read .dockerignore", Err: err}
	}
	m, err := patternmatcher.New(rules)
	if err != nil {
		return nil, nil // the build says what is wrong with them
	}
	return func(path string, isDir bool) bool {
		switch path {
		case "Dockerfile", ".dockerignore", "Dockerfile.dockerignore":
			return false // the build's own
		}
		if isDir && m.Exclusions() {
			return false
		}
		out, err := m.MatchesOrParentMatches(path)
		return err == nil && out
	}, nil
}

func readRules(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ignorefile.ReadAll(f)
}
