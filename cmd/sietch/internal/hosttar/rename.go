package hosttar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
)

// Rename copies a stream whose top entry is base so that it is name in the
// copy; an empty base is the root directory, as in [UnpackOptions]. With name
// "." what is in it comes to the top, without the entry itself.
func Rename(ctx context.Context, w io.Writer, r io.Reader, base, name string) (Stats, error) {
	var stats Stats
	from := top{base: base}
	in, out := tar.NewReader(&contextReader{ctx, r}), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return stats, fmt.Errorf("read stream: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		rel, err := from.name(h)
		if err != nil {
			return stats, err
		}
		if h.Name = path.Join(name, rel); h.Name == "." {
			continue
		}
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			old, err := beneath(from.base, h.Linkname)
			if err != nil {
				return stats, err
			}
			h.Linkname = path.Join(name, old)
		}
		// Let the writer choose one that can hold the new name.
		h.Format = tar.FormatUnknown
		if err := out.WriteHeader(h); err != nil {
			return stats, fmt.Errorf("write stream: %w", err)
		}
		n, err := io.Copy(out, in)
		stats.Files, stats.Bytes = stats.Files+1, stats.Bytes+n
		if err != nil {
			return stats, fmt.Errorf("copy %q: %w", h.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, &contextReader{ctx, r}); err != nil {
		return stats, fmt.Errorf("read stream: %w", err)
	}
	return stats, out.Close()
}
