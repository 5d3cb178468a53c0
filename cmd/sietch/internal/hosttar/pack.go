package hosttar

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// Stats counts what was copied.
type Stats struct {
	Files int64 `json:"files"` // directories and links too
	Bytes int64 `json:"bytes"`
}

// PackOptions of [Pack].
type PackOptions struct {
	// Top is the name of the first entry. With "." the source must be a
	// directory and what is in it is packed, not the directory itself.
	Top string
	// Follow packs what a link leads to, when the source is one. Links beneath
	// it are packed as links.
	Follow bool
	// Remark is told what was left out. Nil discards.
	Remark func(string)
}

// Pack writes a file or directory as a tar stream. Owners are numbers. Sockets
// are left out; files with several names are packed once.
func Pack(ctx context.Context, w io.Writer, source string, o PackOptions) (Stats, error) {
	if o.Follow {
		real, err := filepath.EvalSymlinks(source)
		if err != nil {
			return Stats{}, fmt.Errorf("read source: %w", err)
		}
		source = real
	}
	p := packer{ctx: ctx, tar: tar.NewWriter(w), options: o, linked: map[inode]string{}}
	err := filepath.WalkDir(source, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read source: %w", err)
		}
		rel, err := filepath.Rel(source, name)
		if err != nil {
			return err
		}
		return p.add(name, path.Join(o.Top, filepath.ToSlash(rel)), d)
	})
	if err == nil {
		err = p.tar.Close()
	}
	return p.stats, err
}

type packer struct {
	ctx     context.Context
	tar     *tar.Writer
	options PackOptions
	linked  map[inode]string // first name of files that have several
	stats   Stats
}

type inode struct{ dev, ino uint64 }

func (p *packer) add(name, entry string, d fs.DirEntry) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if entry == "." {
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return fmt.Errorf("read source: %w", err)
	}
	if info.Mode()&fs.ModeSocket != 0 {
		if p.options.Remark != nil {
			p.options.Remark(fmt.Sprintf("%q is a socket: left out", name))
		}
		return nil
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(name); err != nil {
			return fmt.Errorf("read source: %w", err)
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	// Names of users mean others in the guest, or nobody.
	h.Name, h.Uname, h.Gname = entry, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && st.Nlink > 1 {
		id := inode{uint64(st.Dev), st.Ino}
		if first, ok := p.linked[id]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			p.linked[id] = entry
		}
	}
	p.stats.Files++
	if h.Typeflag != tar.TypeReg {
		return p.tar.WriteHeader(h)
	}
	return p.file(name, h)
}

// file packs the content of a regular file, which must not change its size
// meanwhile: the header has promised it.
func (p *packer) file(name string, h *tar.Header) error {
	// Not a link or a pipe that took the file's place since it was looked at.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read source: %w", err)
	}
	defer f.Close()
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(p.tar, &contextReader{p.ctx, f}, h.Size)
	p.stats.Bytes += n
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read source: %s became shorter while it was read", name)
	}
	return err
}

// contextReader ends a long copy when nobody waits for it any more.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
