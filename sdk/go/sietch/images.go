package sietch

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sietch-dev/sietch/runtime/api/client"
)

// Requests and answers, as the API's document has them.
type (
	Image       = client.Image
	BuildParams = client.BuildImageParams
)

// Images gives the images, an entry for each name.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	return answer[[]Image](c.api.ListImages(ctx))
}

// InspectImage gives an image by its name or id.
func (c *Client) InspectImage(ctx context.Context, image string) (Image, error) {
	return answer[Image](c.api.InspectImage(ctx, image))
}

// RemoveImage removes an image, or one name of it.
func (c *Client) RemoveImage(ctx context.Context, image string) error {
	return done(c.api.RemoveImage(ctx, image, nil))
}

// Build makes an image from a Dockerfile. buildContext is a tar of the context;
// progress, if not nil, is written each line.
func (c *Client) Build(ctx context.Context, q BuildParams, buildContext io.Reader, progress io.Writer) (Image, error) {
	if progress == nil {
		q.Progress = "quiet"
	}
	return made(progress)(c.api.BuildImageWithBody(ctx, &q, tarred, buildContext))
}

// Pull makes an image of one in a registry.
func (c *Client) Pull(ctx context.Context, ref string, progress io.Writer) (Image, error) {
	return made(progress)(c.api.PullImage(ctx, nil, client.PullRequest{Ref: ref}))
}

// Bootstrap makes a base image, such as debian:bookworm, from the package mirror
// of the server's host.
func (c *Client) Bootstrap(ctx context.Context, name string, progress io.Writer) (Image, error) {
	return made(progress)(c.api.BootstrapImage(ctx, nil, client.BootstrapRequest{Name: name}))
}

// made reads progress, and in the end the image.
func made(progress io.Writer) func(*http.Response, error) (Image, error) {
	return func(resp *http.Response, err error) (Image, error) {
		type line struct {
			Progress string
			Image    *Image
		}
		for l, err := range objects[line](resp, err) {
			switch {
			case err != nil:
				return Image{}, err
			case l.Image != nil:
				return *l.Image, nil
			case progress != nil:
				if _, err := fmt.Fprintln(progress, l.Progress); err != nil {
					return Image{}, err
				}
			}
		}
		return Image{}, fmt.Errorf("make image: %w: it ended without one", ErrProtocol)
	}
}
