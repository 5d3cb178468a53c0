package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/cmd/sietch/internal/hosttar"
	"github.com/sietch-dev/sietch/runtime"
)

func cpCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "cp",
		Category:  groupSandboxes,
		Usage:     "copy files between the host and sandboxes",
		ArgsUsage: "SRC DST",
		Description: `Each side is a path of the host or NAME:/path in a sandbox; "-" is a tar stream
on stdin or stdout. A host path with a colon in it begins with ./ or /.

A file goes to DST, or into DST where that is a directory. A directory becomes
DST, or goes into DST where that is a directory; of SRC/. only the content does.
The directory above DST must be there. Owners and modes are kept, links are
copied as links. On the host nothing is written outside DST, whatever the guest
sends, and devices, pipes and set-uid bits are left out.

Examples:
sietch cp app.py box:/srv/
sietch cp box:/var/log ./logs
sietch cp src/. box:/srv/src
sietch cp box:/etc - | tar -t
tar -c . | sietch cp - box:/srv
sietch cp one:/data two:/data`,
		Flags: []cli.Flag{toggle("follow-link,L", "copy what SRC leads to, when it is a link")},
		Action: func(c *cli.Context) error {
			o := cpOptions{source: c.Args().Get(0), destination: c.Args().Get(1), follow: c.Bool("follow-link")}
			return runCp(c.Context, e, o)
		},
	}
}

type cpOptions struct {
	source, destination string
	follow              bool
}

func runCp(ctx context.Context, e *env, o cpOptions) error {
	src, dst, err := o.endpoints(e)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	k := copier{env: e, engine: engine, follow: o.follow || src.asDir}
	var stats hosttar.Stats
	switch {
	case dst.stream:
		return k.toStream(ctx, src)
	case src.stream:
		return k.fromStream(ctx, dst)
	default:
		stats, err = k.copy(ctx, src, dst)
		k.sayRest()
	}
	if err != nil {
		return err
	}
	if e.json {
		return e.document(stats)
	}
	e.verbose("copied %s, %s", count(stats.Files, "file"), size(stats.Bytes))
	return nil
}

func (o cpOptions) endpoints(e *env) (src, dst endpoint, err error) {
	var wrong problems
	src, err = parseEndpoint(o.source)
	wrong.note("SRC", err)
	dst, err = parseEndpoint(o.destination)
	wrong.note("DST", err)
	switch {
	case len(wrong.lines) > 0:
	case src.guest == "" && dst.guest == "":
		wrong.add("neither SRC nor DST is in a sandbox: one of them is NAME:/path")
	case src.stream && e.isTerminal(e.in):
		wrong.add("SRC: stdin is a terminal, not a tar stream")
	case dst.stream && e.isTerminal(e.out):
		wrong.add("DST: stdout is a terminal: pipe the tar stream into something")
	}
	return src, dst, wrong.err("see sietch cp --help")
}

// copier moves tar streams between an engine and this host.
type copier struct {
	*env
	engine  runtime.Engine
	follow  bool
	remarks int
}

func (k *copier) toStream(ctx context.Context, src endpoint) error {
	return k.engine.CopyOut(ctx, runtime.CopyOutRequest{Name: src.guest, Path: src.path, FollowLink: k.follow}, k.out)
}

func (k *copier) fromStream(ctx context.Context, dst endpoint) error {
	at, err := k.target(ctx, dst)
	switch {
	case err != nil:
		return err
	case !at.isDir:
		return fmt.Errorf("copy to %s: a stream is unpacked into a directory, and this is none", dst)
	}
	return k.engine.CopyIn(ctx, runtime.CopyInRequest{Name: dst.guest, Path: at.path}, k.in)
}

func (k *copier) copy(ctx context.Context, src, dst endpoint) (stats hosttar.Stats, err error) {
	from, err := k.sourceOf(ctx, src)
	if err != nil {
		return stats, err
	}
	to, err := k.target(ctx, dst)
	if err != nil {
		return stats, err
	}
	dir, name, err := place(from, to)
	if err != nil {
		return stats, missing(err, "copy %s to %s", src, dst)
	}
	out := func(w io.Writer) error {
		return k.engine.CopyOut(ctx, runtime.CopyOutRequest{Name: src.guest, Path: src.path, FollowLink: k.follow}, w)
	}
	in := func(r io.Reader) error {
		return k.engine.CopyIn(ctx, runtime.CopyInRequest{Name: dst.guest, Path: dir}, r)
	}
	switch {
	case dst.guest == "":
		return stats, through(out, func(r io.Reader) (err error) {
			stats, err = k.unpack(ctx, r, from, dir, name)
			return err
		})
	case src.guest == "":
		return stats, through(func(w io.Writer) (err error) {
			stats, err = hosttar.Pack(ctx, w, src.path, hosttar.PackOptions{Top: name, Follow: k.follow, Remark: k.say})
			return err
		}, in)
	}
	return stats, through(out, func(r io.Reader) error {
		return through(func(w io.Writer) (err error) {
			stats, err = hosttar.Rename(ctx, w, r, from.base, name)
			return err
		}, in)
	})
}

func (k *copier) unpack(ctx context.Context, r io.Reader, from source, dir, name string) (hosttar.Stats, error) {
	o := hosttar.UnpackOptions{Base: from.base, KeepTop: name == ".", Remark: k.say}
	if from.isDir {
		return hosttar.Tree(ctx, r, filepath.Join(dir, name), o)
	}
	return hosttar.File(ctx, r, dir, name, o)
}

// mostRemarks are told of one copy; a guest can cause any number of them.
const mostRemarks = 3

func (k *copier) say(text string) {
	if k.remarks++; k.remarks <= mostRemarks {
		k.remark("%s", text)
	}
}

func (k *copier) sayRest() {
	if more := k.remarks - mostRemarks; more > 0 {
		k.remark("and %d more like that", more)
	}
}

// through connects one that writes with one that reads, and returns the error
// of the one that failed first: the other's is only its echo.
func through(write func(io.Writer) error, read func(io.Reader) error) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err) // nil is the end of the stream
		written <- err
	}()
	readErr := read(r)
	r.CloseWithError(errReaderGone)
	writeErr := <-written
	if writeErr == nil || readErr != nil && errors.Is(writeErr, errReaderGone) {
		return readErr
	}
	if errors.Is(writeErr, errReaderGone) {
		// The reader had all it wanted before the end of the stream.
		return nil
	}
	return writeErr
}

var errReaderGone = errors.New("reader is gone")

// sourceOf finds out what is to be copied.
func (k *copier) sourceOf(ctx context.Context, src endpoint) (source, error) {
	s := source{base: src.base(), contents: src.contents}
	if src.guest == "" {
		st, err := statHost(src.path, k.follow)
		if err != nil {
			return s, missing(err, "copy %s", src)
		}
		s.isDir = st.IsDir()
	} else {
		st, err := k.statGuest(ctx, src.guest, src.path, k.follow)
		if err != nil {
			return s, err
		}
		s.isDir = st.IsDir
	}
	if src.asDir && !s.isDir {
		return s, fmt.Errorf("copy %s: it is not a directory", src)
	}
	s.contents = s.isDir && (src.contents || s.base == "")
	return s, nil
}

// target finds out what is at the destination.
func (k *copier) target(ctx context.Context, dst endpoint) (target, error) {
	if dst.guest == "" {
		return hostTarget(dst)
	}
	t := target{path: dst.path, asDir: dst.asDir}
	st, real, err := k.resolve(ctx, dst.guest, dst.path)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		// Where it is the sandbox that is not there, this says so.
		dir, name := splitGuest(dst.path)
		parent, real, err := k.resolve(ctx, dst.guest, dir)
		if err != nil {
			return t, err
		}
		if !parent.IsDir {
			return t, fmt.Errorf("copy to %s: %s is not a directory", dst, dir)
		}
		t.path = joinGuest(real, name)
		return t, nil
	case err != nil:
		return t, err
	}
	t.path, t.exists, t.isDir = real, true, st.IsDir
	return t, nil
}

// statGuest looks at a path of a guest, at what a link leads to if follow is set.
func (k *copier) statGuest(ctx context.Context, name, path string, follow bool) (runtime.PathStat, error) {
	if !follow {
		return k.engine.StatPath(ctx, name, path)
	}
	st, _, err := k.resolve(ctx, name, path)
	return st, err
}

// mostLinks is how many links the kernel follows before it calls them a loop.
const mostLinks = 40

// resolve follows the links at the end of a path of a guest.
func (k *copier) resolve(ctx context.Context, name, path string) (runtime.PathStat, string, error) {
	for range mostLinks {
		st, err := k.engine.StatPath(ctx, name, path)
		if err != nil || st.LinkTarget == "" {
			return st, path, err
		}
		dir, _ := splitGuest(path)
		if strings.HasPrefix(st.LinkTarget, "/") {
			dir = "/"
		}
		path = joinGuest(dir, st.LinkTarget)
	}
	return runtime.PathStat{}, "", fmt.Errorf("look at %s:%s: too many links", name, path)
}
