package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Pull fetches an image from a registry, with the credentials of the user's
// docker configuration, and names it as it is named there. An image pulled by
// digest gets no name.
//
// ErrImageNotFound, ErrUnreachable.
func (b *Builder) Pull(ctx context.Context, ref string, progress io.Writer) (Image, error) {
	if progress == nil {
		progress = io.Discard
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return Image{}, fmt.Errorf("pull: %w %q: %w", ErrInvalidName, ref, err)
	}
	named = reference.TagNameOnly(named)
	var names []string
	if _, ok := named.(reference.Digested); !ok {
		full, err := ParseName(named.String())
		if err != nil {
			return Image{}, fmt.Errorf("pull: %w", err)
		}
		names = []string{full}
	}
	r, err := name.ParseReference(named.String())
	if err != nil {
		// It does not say why; its parts do.
		if _, why := name.NewRepository(named.Name()); why != nil {
			err = why
		}
		return Image{}, fmt.Errorf("pull: %w %q: %w", ErrInvalidName, ref, err)
	}
	drop, err := b.store.holdBlobs()
	if err != nil {
		return Image{}, err
	}
	defer drop()
	fmt.Fprintf(progress, "pulling %s\n", reference.FamiliarString(named))
	img, err := remote.Image(r,
		remote.WithContext(ctx),
		remote.WithAuthFromKeychain(keychain{dockerConfig()}),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}),
		remote.WithUserAgent("sietch"),
	)
	if err != nil {
		return Image{}, pullError(ctx, named, err)
	}
	in, err := b.store.storeImage(ctx, img, b.reportLayers(progress))
	if err != nil {
		return Image{}, pullError(ctx, named, err)
	}
	out, err := b.admit(ctx, in, names, progress)
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", reference.FamiliarString(named), err)
	}
	return out, nil
}

// pullError gives the failure to fetch an image its sentinel.
func pullError(ctx context.Context, named reference.Named, err error) error {
	familiar := reference.FamiliarString(named)
	if ctx.Err() != nil {
		return fmt.Errorf("pull %s: %w", familiar, ctx.Err())
	}
	var t *transport.Error
	switch {
	case errors.As(err, &t) && t.StatusCode == http.StatusNotFound:
		return fmt.Errorf("pull %s: %w: %w", familiar, ErrImageNotFound, err)
	case errors.As(err, &t) && (t.StatusCode == http.StatusUnauthorized || t.StatusCode == http.StatusForbidden):
		return withHint(fmt.Errorf("pull %s: %w", familiar, err),
			"it may not exist, or needs docker login "+reference.Domain(named))
	case errors.As(err, &t), isNoSpace(err), errors.Is(err, ErrArchive):
		return fmt.Errorf("pull %s: %w", familiar, err)
	}
	return withHint(fmt.Errorf("pull %s: %s is %w: %w", familiar, reference.Domain(named), ErrUnreachable, err), imageHint(familiar))
}
