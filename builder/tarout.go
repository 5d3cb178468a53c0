package builder

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder/ext4"
)

// xattrRecord is how tar carries extended attributes.
const xattrRecord = "SCHILY.xattr."

// writeTar writes the tree of an ext4 image, in the order of names, so that the
// same image always gives the same stream. Sockets, which tar has no form for and
// which mean nothing outside of the machine they were made in, are left out.
func writeTar(ctx context.Context, fs *ext4.FS, w io.Writer) error {
	tw := tar.NewWriter(w)
	first := map[uint32]string{} // inode to the first name it was met under
	err := fs.Walk(func(p string, i *ext4.Inode) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i.Mode&unix.S_IFMT == unix.S_IFSOCK {
			return nil
		}
		h, err := tarHeader(fs, p, i)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if !i.IsDir() && i.Links > 1 {
			if name, ok := first[i.Number]; ok {
				h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, name, 0, nil
			} else {
				first[i.Number] = h.Name
			}
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		r, err := fs.Open(i)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if _, err := io.Copy(tw, r); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func tarHeader(fs *ext4.FS, p string, i *ext4.Inode) (*tar.Header, error) {
	h := &tar.Header{
		Format:  tar.FormatPAX,
		Name:    strings.TrimPrefix(p, "/"),
		Mode:    int64(i.Mode & 0o7777),
		Uid:     int(i.UID),
		Gid:     int(i.GID),
		ModTime: i.Mtime,
	}
	switch i.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, i.Size
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		if p == "/" {
			h.Name = "./"
		}
	case unix.S_IFLNK:
		target, err := fs.Readlink(i)
		if err != nil {
			return nil, err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if i.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(i.Rdev)), int64(unix.Minor(i.Rdev))
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil, fmt.Errorf("%w: file type %o", ext4.ErrUnsupported, i.Mode)
	}
	attrs, err := fs.Xattrs(i)
	if err != nil {
		return nil, err
	}
	for name, value := range attrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrRecord+name] = string(value)
	}
	return h, nil
}
