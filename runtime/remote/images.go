package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// ListImages lists the images.
func (e *Engine) ListImages(ctx context.Context) ([]runtime.Image, error) {
	return ask[[]runtime.Image](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ListImages(ctx, with)
	})
}

// InspectImage describes an image.
func (e *Engine) InspectImage(ctx context.Context, image string) (runtime.Image, error) {
	if err := word("image", image); err != nil {
		return runtime.Image{}, err
	}
	return ask[runtime.Image](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.InspectImage(ctx, image, with)
	})
}

// RemoveImage removes an image, or one name of it.
func (e *Engine) RemoveImage(ctx context.Context, image string) error {
	if err := word("image", image); err != nil {
		return err
	}
	return tell(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RemoveImage(ctx, image, nil, with)
	})
}

// TagImage gives an image one more name.
func (e *Engine) TagImage(ctx context.Context, image, name string) (runtime.Image, error) {
	if err := word("image", image); err != nil {
		return runtime.Image{}, err
	}
	return ask[runtime.Image](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.TagImage(ctx, image, nil, client.TagImageRequest{Name: name}, with)
	})
}

// ImportImage makes an image of an archive or directory of this process's.
func (e *Engine) ImportImage(ctx context.Context, r runtime.ImportRequest) (runtime.Image, error) {
	fill := copied(r.Reader)
	switch {
	case r.Source != "":
		source, err := openSource(&r)
		if err != nil {
			return runtime.Image{}, fmt.Errorf("import %s: %w", r.Source, err)
		}
		defer source.close()
		fill = source.fill
	case r.Reader == nil:
		return runtime.Image{}, &runtime.Error{Kind: runtime.ErrUsage, Message: "import standard input: nothing to read"}
	}
	p := &client.ImportImageParams{Name: r.Name, Format: client.ImportImageParamsFormat(r.Format)}
	image, err := sendFor(ctx, e, fill, func(ctx context.Context, in io.Reader, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ImportImageWithBody(ctx, p, tarred, in, with)
	}, func(resp *http.Response) (runtime.Image, error) { return wire.Answer[runtime.Image](resp, nil) })
	if r.Source != "" {
		err = renamed(err, "import standard input", "import "+r.Source)
	}
	return image, err
}

// source is what an image is imported from.
type source struct {
	fill  func(io.Writer) error
	close func() error
}

// openSource opens a file, or reads a directory, which is an OCI layout, as a tar.
func openSource(r *runtime.ImportRequest) (source, error) {
	st, err := os.Stat(r.Source)
	if err != nil {
		return source{}, err
	}
	f, err := os.Open(r.Source)
	if err != nil {
		return source{}, err
	}
	if !st.IsDir() {
		return source{copied(f), f.Close}, nil
	}
	switch r.Format {
	case "rootfs", "docker":
		return source{}, errors.Join(fmt.Errorf("format %s is a tar, this is a directory", r.Format), f.Close())
	}
	r.Format = "oci"
	return source{func(w io.Writer) error {
		return tartree.Pack(w, tartree.PackOptions{Path: r.Source, FollowLink: true, Name: "."})
	}, f.Close}, nil
}

// renamed is an error about what the caller calls otherwise than the server.
func renamed(err error, theirs, ours string) error {
	if said, ok := errors.AsType[*runtime.Error](err); ok {
		if rest, ok := strings.CutPrefix(said.Message, theirs+":"); ok {
			said.Message = ours + ":" + rest
		}
	}
	return err
}

// ExportImage writes an image as an archive.
func (e *Engine) ExportImage(ctx context.Context, image, format string, w io.Writer) error {
	if err := word("image", image); err != nil {
		return err
	}
	return fetch(ctx, e, w, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.ExportImage(ctx, image, &client.ExportImageParams{Format: client.ExportImageParamsFormat(format)}, with)
	})
}

// PullImage makes an image of one in a registry.
func (e *Engine) PullImage(ctx context.Context, ref string, progress io.Writer) (runtime.Image, error) {
	return call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.PullImage(ctx, nil, client.PullRequest{Ref: ref}, with)
	}, made(progress))
}

// BootstrapImage makes a base image from the package mirror of the host.
func (e *Engine) BootstrapImage(ctx context.Context, name string, progress io.Writer) (runtime.Image, error) {
	return call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.BootstrapImage(ctx, nil, client.BootstrapRequest{Name: name}, with)
	}, made(progress))
}

// made reads progress, and the image in the end.
func made(progress io.Writer) func(*http.Response) (runtime.Image, error) {
	return func(resp *http.Response) (runtime.Image, error) {
		return wire.Made[runtime.Image](progress)(resp, nil)
	}
}
