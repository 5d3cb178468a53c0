package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder"
)

// Build makes an image from a Dockerfile.
func (e *Local) Build(ctx context.Context, q BuildRequest) (Image, error) {
	called := ""
	switch {
	case q.ContextDir == "" && q.Context == nil:
		return Image{}, usage("", "no build context given")
	case q.ContextDir != "" && q.Context != nil:
		return Image{}, usage("", "two build contexts given: a directory and a stream")
	case q.Context != nil:
		called = q.Dockerfile // the path of what is unpacked says nothing to who sent it
		tmp, inside, err := e.unpackContext(ctx, q)
		if err != nil {
			return Image{}, err
		}
		defer tmp.remove()
		q = inside
	}
	secrets := make([]builder.Secret, len(q.Secrets))
	for i, s := range q.Secrets {
		secrets[i] = builder.Secret{ID: s.ID, Source: s.Source, Env: s.Env}
	}
	return e.makeImage("image.build", q.Names, func(b *builder.Builder) (builder.Image, error) {
		return b.Build(ctx, builder.BuildRequest{
			ContextDir: q.ContextDir, Dockerfile: q.Dockerfile, Called: called, Names: q.Names, Target: q.Target,
			BuildArgs: q.BuildArgs, Secrets: secrets, BuildContexts: q.BuildContexts, NoCache: q.NoCache,
			Progress: q.Progress, ProgressOut: q.ProgressOut,
		})
	})
}

// ShowBuild shows at a terminal the progress of a build that runs elsewhere: what
// is written to w are its reports, as the progress rawjson has them, and end waits
// until all is shown. w is nil where out is no terminal.
func ShowBuild(out *os.File) (w io.Writer, end func()) {
	if !term.IsTerminal(int(out.Fd())) {
		return nil, nil
	}
	r, pipe := io.Pipe()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		// A display that fails does not end the build.
		r.CloseWithError(builder.ShowProgress(out, r))
	}()
	return shownAnyway{pipe}, func() { pipe.Close(); <-shown }
}

// shownAnyway takes what nobody reads any more.
type shownAnyway struct{ w io.Writer }

func (s shownAnyway) Write(p []byte) (int, error) { s.w.Write(p); return len(p), nil }

// ImportImage makes an image of an archive or directory.
func (e *Local) ImportImage(ctx context.Context, q ImportRequest) (Image, error) {
	format := builder.Format(q.Format)
	if q.Format == "auto" {
		format = builder.FormatAuto
	}
	return e.makeImage("image.import", []string{q.Name}, func(b *builder.Builder) (builder.Image, error) {
		i, err := b.Import(ctx, builder.ImportRequest{Source: q.Source, Reader: q.Reader, Name: q.Name, Format: format})
		if errors.Is(err, builder.ErrArchive) { // here it is what the caller brought
			err = &Error{Kind: ErrUsage, Message: err.Error(), Hint: Hint(err)}
		}
		return i, err
	})
}

// PullImage makes an image of one in a registry.
func (e *Local) PullImage(ctx context.Context, ref string, progress io.Writer) (Image, error) {
	return e.makeImage("image.pull", []string{ref}, func(b *builder.Builder) (builder.Image, error) { return b.Pull(ctx, ref, progress) })
}

// BootstrapImage makes a base image from the host's package mirror.
func (e *Local) BootstrapImage(ctx context.Context, name string, progress io.Writer) (Image, error) {
	return e.makeImage("image.bootstrap", []string{name}, func(b *builder.Builder) (builder.Image, error) { return b.Bootstrap(ctx, name, progress) })
}

// makeImage answers with the image under the name asked for: what has the same
// content is the same image, whatever else it is called.
func (e *Local) makeImage(event string, asked []string, fn func(*builder.Builder) (builder.Image, error)) (Image, error) {
	if err := e.prepare(); err != nil {
		return Image{}, err
	}
	b, err := e.imageStore()
	if err != nil {
		return Image{}, err
	}
	i, err := fn(b)
	if err != nil {
		return Image{}, imageError(err)
	}
	name := askedName(i, asked)
	e.emit(Event{Type: event, Image: orDefault(name, i.ID)})
	return imageView(i, name), nil
}

// askedName is the first of the names asked for, in full; that of a source which
// names itself (an empty one) is the image's own. Nobody asked: none.
func askedName(i builder.Image, asked []string) string {
	for _, name := range asked {
		if full, err := builder.ParseName(name); err == nil && slices.Contains(i.Names, full) {
			return full
		}
		if name == "" && len(i.Names) > 0 {
			return i.Names[0]
		}
	}
	return ""
}

// ListImages has one entry for each name, and one for each image without.
func (e *Local) ListImages(ctx context.Context) ([]Image, error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	b, err := e.imageStore()
	if err != nil {
		return nil, err
	}
	all, err := b.Images(ctx)
	if err != nil {
		return nil, imageError(err)
	}
	list := []Image{}
	for _, i := range all {
		if len(i.Names) == 0 {
			list = append(list, imageView(i, ""))
		}
		for _, n := range i.Names {
			list = append(list, imageView(i, n))
		}
	}
	return list, nil
}

// InspectImage returns one image by name, id or unique prefix.
func (e *Local) InspectImage(ctx context.Context, image string) (Image, error) {
	if err := e.readable(); err != nil {
		return Image{}, err
	}
	b, err := e.imageStore()
	if err != nil {
		return Image{}, err
	}
	i, err := b.Image(ctx, image)
	if err != nil {
		return Image{}, imageError(err)
	}
	name := ""
	if len(i.Names) > 0 { // else imageName is the id
		name = imageName(i, image)
	}
	return imageView(i, name), nil
}

// TagImage gives an image one more name.
func (e *Local) TagImage(ctx context.Context, image, name string) (Image, error) {
	if err := e.prepare(); err != nil {
		return Image{}, err
	}
	b, err := e.imageStore()
	if err != nil {
		return Image{}, err
	}
	if err := b.Tag(ctx, image, name); err != nil {
		return Image{}, imageError(err)
	}
	i, err := b.Image(ctx, name)
	if err != nil {
		return Image{}, imageError(err)
	}
	e.emit(Event{Type: "image.tag", Image: imageName(i, name)})
	return imageView(i, imageName(i, name)), nil
}

// RemoveImage removes a name, and the image with its last one, unless a sandbox
// or a commit needs it.
func (e *Local) RemoveImage(ctx context.Context, image string) error {
	if err := e.prepare(); err != nil {
		return err
	}
	b, err := e.imageStore()
	if err != nil {
		return err
	}
	if err := b.Remove(ctx, image, func(id string) error { return e.imageInUse(ctx, id, image) }); err != nil {
		return imageError(err)
	}
	e.emit(Event{Type: "image.remove", Image: image})
	return nil
}

func (e *Local) imageInUse(ctx context.Context, id, name string) error {
	records, err := e.records()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Machine.Image.ID == id {
			return busy("remove the sandbox first: sietch rm "+r.Name, "image %s is used by sandbox %s", name, r.Name)
		}
	}
	if !exists(e.store()) {
		return nil
	}
	return e.withStore(ctx, func(s *branches.Store) error {
		_, from, err := e.pointers(ctx, s)
		if err != nil {
			return err
		}
		commits, err := s.Log(ctx, from, 0)
		if err != nil {
			return err
		}
		for _, c := range commits {
			if c.Image.ID == id {
				return busy("remove the branches and tags that lead to it, then: sietch gc", "image %s is needed by commit %s", name, c.ID.Short())
			}
		}
		return nil
	})
}

// ExportImage writes an image as an archive that other tools load.
func (e *Local) ExportImage(ctx context.Context, image, format string, w io.Writer) error {
	if err := e.prepare(); err != nil {
		return err
	}
	b, err := e.imageStore()
	if err != nil {
		return err
	}
	return imageError(b.Export(ctx, image, w, builder.Format(orDefault(format, string(builder.FormatOCI)))))
}

// imageError gives errors of the builder their kind; they bring their own hints.
func imageError(err error) error {
	var known *Error
	var kind error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, builder.ErrImageNotFound):
		kind = ErrNotFound
	case errors.Is(err, builder.ErrInvalidName), errors.Is(err, builder.ErrInvalidRequest), errors.Is(err, builder.ErrAmbiguous):
		kind = ErrUsage
	case errors.Is(err, builder.ErrMissingTool), errors.Is(err, builder.ErrNotRoot):
		kind = ErrHost
	default:
		return hostError(err)
	}
	return fmt.Errorf("%w%w", &quiet{kind}, err)
}

// quiet adds a kind to an error without adding to its text.
type quiet struct{ kind error }

func (q *quiet) Error() string { return "" }
func (q *quiet) Unwrap() error { return q.kind }

func imageView(i builder.Image, name string) Image {
	v := Image{ID: i.ID, Created: i.Created, SizeBytes: i.SizeBytes, RootfsDigest: i.RootfsDigest}
	// The last colon divides name and tag, unless it is a registry's port.
	v.Name = name
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		v.Name, v.Tag = name[:at], name[at+1:]
	}
	c := i.Config
	v.Config = ImageConfig{
		Env: list(c.Env), Entrypoint: list(c.Entrypoint), Cmd: list(c.Cmd), User: c.User, WorkingDir: c.WorkingDir,
		StopSignal: c.StopSignal, ExposedPorts: list(c.ExposedPorts), Labels: c.Labels,
	}
	if v.Config.Labels == nil {
		v.Config.Labels = map[string]string{}
	}
	return v
}

// list is never nil, so that JSON shows an empty one.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
