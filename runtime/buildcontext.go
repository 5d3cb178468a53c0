package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
)

const (
	// contextReserve is what a context leaves of the data directory's space.
	contextReserve = 256 << 20
	// dockerfileLimit bounds a Dockerfile that comes without a context.
	dockerfileLimit = 4 << 20

	tarBlock = 512
)

// unpackContext unpacks the stream of a build context into a scratch directory,
// which the caller removes, and returns the request with the paths there. Who
// sends it may be a stranger: nothing of it lands outside, and no link in it
// leads the build to a file of the host.
func (e *Local) unpackContext(ctx context.Context, q BuildRequest) (_ *scratch, _ BuildRequest, err error) {
	if err := e.prepare(); err != nil {
		return nil, q, err
	}
	tmp, err := e.newScratch("build")
	if err != nil {
		return nil, q, hostError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.remove())
		}
	}()
	dir := tmp.path("context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, q, hostError(err)
	}
	plain, err := builder.Decompress(&contextReader{ctx: ctx, r: q.Context})
	if err != nil {
		return nil, q, fmt.Errorf("read build context: %w", err)
	}
	defer plain.Close()
	room, err := roomAt(dir)
	if err != nil {
		return nil, q, err
	}
	in := bufio.NewReaderSize(&boundedReader{r: plain, left: room}, 64<<10)
	head, err := in.Peek(tarBlock)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, q, contextError(err)
	}
	if !isTar(head) {
		err := loneDockerfile(in, dir, q.Dockerfile)
		q.Context, q.ContextDir, q.ContextPath, q.Dockerfile = nil, dir, "", ""
		return tmp, q, err
	}
	if err := tartree.Unpack(in, tartree.UnpackOptions{Path: dir}); err != nil {
		return nil, q, contextError(err)
	}
	q, err = insideStream(dir, q)
	return tmp, q, err
}

// insideStream finds what a request names in its stream, unpacked at dir.
func insideStream(dir string, q BuildRequest) (BuildRequest, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return q, hostError(err)
	}
	defer root.Close()
	q.Context, q.ContextDir = nil, dir
	if q.ContextPath != "" {
		if q.ContextDir, err = insideDir(root, q.ContextPath); err != nil {
			return q, err
		}
		named := map[string]string{}
		for name, source := range q.BuildContexts {
			if inside, ok := strings.CutPrefix(source, "./"); ok {
				if source, err = insideDir(root, inside); err != nil {
					return q, err
				}
			}
			named[name] = source
		}
		q.BuildContexts = named
	}
	standard := path.Join(q.ContextPath, "Dockerfile")
	file, err := insideContext(root, orDefault(q.Dockerfile, standard))
	// The standard one goes by its name alone, also in what is said of it.
	if q.Dockerfile = filepath.Join(dir, file); path.Clean("/"+file) == path.Clean("/"+standard) {
		q.Dockerfile = ""
	}
	q.ContextPath = ""
	return q, err
}

// insideDir finds a directory of the stream. The build follows no link on its
// way to it, so none leads out.
func insideDir(root *os.Root, name string) (string, error) {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+name), "/"), "/") {
		at = path.Join(at, part)
		st, err := root.Lstat(orDefault(at, "."))
		if err != nil || !st.IsDir() {
			return "", usage("", "build context: %s is no directory in it", name)
		}
	}
	return filepath.Join(root.Name(), at), nil
}

// isTar looks at the first block of a stream for a header's sum.
func isTar(block []byte) bool {
	if len(block) < tarBlock {
		return false
	}
	const at, size = 148, 8
	want, err := strconv.ParseInt(strings.Trim(string(block[at:at+size]), " \x00"), 8, 64)
	sum := int64(size * ' ')
	for i, b := range block {
		if i < at || i >= at+size {
			sum += int64(b)
		}
	}
	return err == nil && sum == want
}

// loneDockerfile takes a stream that is no archive for a Dockerfile without
// files beside it.
func loneDockerfile(in io.Reader, dir, asked string) error {
	text, err := io.ReadAll(io.LimitReader(in, dockerfileLimit+1))
	switch {
	case err != nil:
		return contextError(err)
	case asked != "" && path.Clean(asked) != "Dockerfile":
		return usage("", "build context: the stream is no archive, so there is no %s in it", asked)
	case len(text) == 0:
		return usage("", "build context: the stream is empty")
	case len(text) > dockerfileLimit:
		return usage("send a tar archive, compressed with gzip, zstd or xz or not", "build context: the stream is neither an archive nor a Dockerfile")
	}
	return hostError(os.WriteFile(filepath.Join(dir, "Dockerfile"), text, 0o600))
}

// insideContext finds the Dockerfile, also through links, as long as they stay
// inside.
func insideContext(root *os.Root, name string) (string, error) {
	name = strings.TrimLeft(path.Clean("/"+name), "/")
	st, err := root.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", usage("name it with -f, as a path in the context", "build context: there is no %s in it", name)
	case err != nil:
		return "", usage("", "build context: %s leads out of it", name)
	case !st.Mode().IsRegular():
		return "", usage("", "build context: %s is no file", name)
	}
	return name, nil
}

// roomAt is how much may be unpacked into a directory.
func roomAt(dir string) (int64, error) {
	free, err := freeBytes(dir)
	if err != nil {
		return 0, fmt.Errorf("look at free space: %w", err)
	}
	return max(0, free-contextReserve), nil
}

// boundedReader ends with ENOSPC rather than a full disk.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, unix.ENOSPC
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// contextError tells what is wrong with a stream from what is wrong here.
func contextError(err error) error {
	for _, theirs := range []error{tartree.ErrArchive, tartree.ErrUnsafe, tartree.ErrRefused, tartree.ErrConflict} {
		if errors.Is(err, theirs) {
			return &Error{Kind: ErrUsage, Message: "build context", Err: err}
		}
	}
	return fmt.Errorf("unpack build context: %w", hostError(err))
}
