package sietch

import (
	"context"
	"io"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Requests and answers, as the API's document has them.
type (
	Image       = client.Image
	BuildParams = client.BuildImageParams
)

// Images gives the images, an entry for each name.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	return wire.Answer[[]Image](c.api.ListImages(ctx))
}

// InspectImage gives an image by its name or id.
func (c *Client) InspectImage(ctx context.Context, image string) (Image, error) {
	return wire.Answer[Image](c.api.InspectImage(ctx, image))
}

// RemoveImage removes an image, or one name of it.
func (c *Client) RemoveImage(ctx context.Context, image string) error {
	return wire.Done(c.api.RemoveImage(ctx, image, nil))
}

// Build makes an image from a Dockerfile. buildContext is a tar of the context;
// progress, if not nil, is written each line.
func (c *Client) Build(ctx context.Context, q BuildParams, buildContext io.Reader, progress io.Writer) (Image, error) {
	if progress == nil {
		q.Progress = "quiet"
	}
	return wire.Made[Image](progress)(c.api.BuildImageWithBody(ctx, &q, tarred, buildContext))
}

// Pull makes an image of one in a registry.
func (c *Client) Pull(ctx context.Context, ref string, progress io.Writer) (Image, error) {
	return wire.Made[Image](progress)(c.api.PullImage(ctx, nil, client.PullRequest{Ref: ref}))
}

// Bootstrap makes a base image, such as debian:bookworm, from the package mirror
// of the server's host.
func (c *Client) Bootstrap(ctx context.Context, name string, progress io.Writer) (Image, error) {
	return wire.Made[Image](progress)(c.api.BootstrapImage(ctx, nil, client.BootstrapRequest{Name: name}))
}
