package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

var progressModes = []string{"auto", "plain", "rawjson", "quiet"}

func buildCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "build",
		Category:  groupImages,
		Usage:     "make an image from a Dockerfile",
		ArgsUsage: "CONTEXT",
		Description: `Runs the Dockerfile in directory CONTEXT with BuildKit and makes a bootable
image of the result: every instruction, cache mounts, secrets and multi-stage
builds work as in docker build. Prints the image id. The same input gives the
same id.

With "-" as CONTEXT it is read from stdin: a tar archive, compressed with gzip,
zstd or xz or not, or a Dockerfile alone.

Examples:
sietch build -t agent .
sietch build -t agent:dev --target dev --build-arg VERSION=3 -f docker/Dockerfile .
tar -cz . | sietch build -t agent -
sietch build --secret id=token,src=token.txt --build-context assets=../assets .`,
		Flags: []cli.Flag{
			texts("tag,t", "give the image the name `NAME[:TAG]`; repeatable"),
			text("file,f", "read the Dockerfile `FILE`, of an archive's when CONTEXT is - (default: CONTEXT/Dockerfile)"),
			text("target", "build up to the stage `STAGE`"),
			texts("build-arg", "set `K=V` for ARG K; K alone takes it from the environment; repeatable"),
			texts("secret", "offer `id=ID,src=FILE` or id=ID,env=NAME to RUN --mount=type=secret; repeatable"),
			texts("build-context", "let COPY --from=NAME and FROM NAME read `NAME=DIR`; repeatable"),
			toggle("no-cache", "run every step again"),
			text("progress", "`auto|plain|rawjson|quiet` how progress is shown (default: auto)"),
		},
		Action: func(c *cli.Context) error {
			o := buildOptions{
				context: c.Args().First(), file: c.String("file"), names: c.StringSlice("tag"),
				target: c.String("target"), args: c.StringSlice("build-arg"), secrets: c.StringSlice("secret"),
				contexts: c.StringSlice("build-context"), noCache: c.Bool("no-cache"), progress: c.String("progress"),
			}
			return runBuild(c.Context, e, o)
		},
	}
}

type buildOptions struct {
	context, file, target, progress string
	names, args, secrets, contexts  []string
	noCache                         bool
}

func runBuild(ctx context.Context, e *env, o buildOptions) error {
	request, err := o.request(e)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	image, err := engine.Build(ctx, request)
	if err != nil {
		return err
	}
	return e.result(image, image.ID)
}

func (o buildOptions) request(e *env) (runtime.BuildRequest, error) {
	var wrong problems
	r := runtime.BuildRequest{
		Names: o.names, Target: o.target, NoCache: o.noCache, Progress: o.progress,
		BuildArgs: map[string]string{}, BuildContexts: map[string]string{}, ProgressOut: e.err,
	}
	switch {
	case e.quiet, e.json && o.progress == "":
		r.Progress = "quiet"
	case o.progress == "":
		r.Progress = "auto"
	}
	if !slices.Contains(progressModes, r.Progress) {
		wrong.add("--progress: %s is not one of %s", quote(o.progress), strings.Join(progressModes, ", "))
	}
	o.sources(e, &r, &wrong)
	for _, kv := range e.parseEnv("--build-arg", o.args, &wrong) {
		k, v, _ := strings.Cut(kv, "=")
		r.BuildArgs[k] = v
	}
	for _, s := range o.secrets {
		secret, err := e.parseSecret(s)
		wrong.note("--secret", err)
		r.Secrets = append(r.Secrets, secret)
	}
	for _, s := range o.contexts {
		name, source, err := parseBuildContext(s)
		wrong.note("--build-context", err)
		r.BuildContexts[name] = source
	}
	return r, wrong.err("see sietch build --help")
}

// sources finds context and Dockerfile.
func (o buildOptions) sources(e *env, r *runtime.BuildRequest, wrong *problems) {
	if o.context == "-" {
		r.Context, r.Dockerfile = e.in, o.file
		if e.isTerminal(e.in) {
			wrong.add("CONTEXT: stdin is a terminal: an archive comes from a file or a pipe")
		}
		return
	}
	var err error
	r.ContextDir, err = directory(o.context)
	wrong.note("CONTEXT", err)
	if o.file != "" {
		r.Dockerfile, err = regularFile(o.file)
		wrong.note("--file", err)
	} else if err == nil {
		if _, err := regularFile(filepath.Join(r.ContextDir, "Dockerfile")); err != nil {
			wrong.add("no Dockerfile in %s: name one with --file", o.context)
		}
	}
}

// parseSecret reads id=ID,src=FILE or id=ID,env=NAME.
func (e *env) parseSecret(s string) (runtime.BuildSecret, error) {
	var secret runtime.BuildSecret
	for field := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(field, "=")
		switch k {
		case "id":
			secret.ID = v
		case "src", "source":
			secret.Source = v
		case "env":
			secret.Env = v
		case "type":
			if v != "file" && v != "env" {
				return secret, fmt.Errorf("%s: type %s is not file or env", quote(s), quote(v))
			}
		default:
			return secret, fmt.Errorf("%s: %s is not id, src or env", quote(s), quote(k))
		}
	}
	switch {
	case secret.ID == "":
		return secret, fmt.Errorf("%s: the id is missing", quote(s))
	case (secret.Source == "") == (secret.Env == ""):
		return secret, fmt.Errorf("%s: give either src or env", quote(s))
	case secret.Env != "":
		if _, ok := e.environ(secret.Env); !ok {
			return secret, fmt.Errorf("%s: the environment has no %s", quote(s), secret.Env)
		}
		return secret, nil
	}
	var err error
	secret.Source, err = regularFile(secret.Source)
	return secret, err
}

// parseBuildContext reads NAME=DIR; what has a scheme is left to the builder.
func parseBuildContext(s string) (name, source string, err error) {
	name, source, _ = strings.Cut(s, "=")
	if name == "" || source == "" {
		return "", "", fmt.Errorf("%s is not NAME=DIR", quote(s))
	}
	if strings.Contains(source, "://") {
		return name, source, nil
	}
	source, err = directory(source)
	return name, source, err
}

// directory is the absolute path of a directory that is there.
func directory(name string) (string, error) {
	st, err := os.Stat(name)
	if err != nil {
		return "", fileError(name, err)
	}
	if !st.IsDir() {
		return "", fmt.Errorf("%s is not a directory", name)
	}
	return filepath.Abs(name)
}

// regularFile is the absolute path of a file that is there.
func regularFile(name string) (string, error) {
	st, err := os.Stat(name)
	if err != nil {
		return "", fileError(name, err)
	}
	if st.IsDir() {
		return "", errors.New(name + " is a directory")
	}
	return filepath.Abs(name)
}
