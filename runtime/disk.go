package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// cloneFile makes dst, which must not exist, a copy of src that shares its
// blocks where the file system can (FICLONE), and otherwise copies only what is
// allocated, keeping holes.
func cloneFile(ctx context.Context, src, dst string, mode os.FileMode) (err error) {
	if reflink(src, dst, mode) == nil {
		return nil
	}
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			os.Remove(dst)
		}
	}()
	return copySparse(ctx, in, out)
}

// reflink makes dst a copy of src that shares its blocks, or fails.
func reflink(src, dst string, mode os.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = errors.Join(unix.IoctlFileClone(int(out.Fd()), int(in.Fd())), out.Close())
	if err != nil {
		os.Remove(dst)
	}
	return err
}

// copySparse copies the allocated parts of in to the same offsets of out, an
// empty file, inside the kernel.
func copySparse(ctx context.Context, in, out *os.File) error {
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if err := out.Truncate(st.Size()); err != nil {
		return err
	}
	return eachExtent(in, 0, st.Size(), func(off, end int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return copyRange(in, out, off, end)
	})
}

// eachExtent calls fn for every allocated range of f within [from, to).
func eachExtent(f *os.File, from, to int64, fn func(off, end int64) error) error {
	for off := from; off < to; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find data in %s: %w", f.Name(), err)
		}
		if data >= to {
			return nil
		}
		end, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole in %s: %w", f.Name(), err)
		}
		end = min(end, to)
		if err := fn(data, end); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// copyRange copies [off, end) to the same place of another file.
func copyRange(in, out *os.File, off, end int64) error {
	for off < end {
		roff, woff := off, off
		n, err := unix.CopyFileRange(int(in.Fd()), &roff, int(out.Fd()), &woff, int(min(end-off, 1<<30)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
			_, err := io.Copy(io.NewOffsetWriter(out, off), io.NewSectionReader(in, off, end-off))
			return err
		case err != nil:
			return fmt.Errorf("copy to %s: %w", out.Name(), err)
		case n == 0:
			return fmt.Errorf("copy %s: %w", in.Name(), io.ErrUnexpectedEOF)
		}
		off += int64(n)
	}
	return nil
}

// allocatedBytes is what a file takes on disk.
func allocatedBytes(path string) int64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
