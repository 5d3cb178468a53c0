package hosttar

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// UnpackOptions of [Tree] and [File].
type UnpackOptions struct {
	// Base is the top entry of the stream: the last part of the path that was
	// asked for, or empty for the root directory.
	Base string
	// KeepTop leaves owner, mode and time of the destination directory alone:
	// only its content is copied.
	KeepTop bool
	// Remark is told what was left out or changed. Nil discards.
	Remark func(string)
}

// Tree unpacks a directory as dir, which is made when missing; its parent must
// be there. What is there already stays, unless an entry replaces it; a
// directory and another thing of the same name are an error.
func Tree(ctx context.Context, r io.Reader, dir string, o UnpackOptions) (Stats, error) {
	if st, err := os.Lstat(dir); err == nil && !st.IsDir() && !o.KeepTop {
		return Stats{}, fmt.Errorf("write %s: there is something that is not a directory", dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Stats{}, fmt.Errorf("make directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, fmt.Errorf("open directory: %w", err)
	}
	defer root.Close()
	u := unpacker{ctx: ctx, root: root, options: o, top: top{base: o.Base}, chown: os.Geteuid() == 0}
	err = u.stream(r)
	return u.stats, err
}

// File unpacks one thing that is not a directory as name in directory dir, in
// place of what is there. A file appears only when whole.
func File(ctx context.Context, r io.Reader, dir, name string, o UnpackOptions) (Stats, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, fmt.Errorf("open directory: %w", err)
	}
	defer root.Close()
	u := unpacker{ctx: ctx, root: root, options: o, top: top{base: o.Base}, chown: os.Geteuid() == 0, single: name}
	err = u.stream(r)
	if err == nil && u.stats.Files == 0 {
		err = errors.New("the guest sent nothing")
	}
	return u.stats, err
}

type unpacker struct {
	ctx     context.Context
	root    *os.Root
	options UnpackOptions
	chown   bool
	single  string // the one file to make, or empty
	top     top
	stats   Stats
	dirs    []madeDir // to be given their modes and times when all is in them
}

type madeDir struct {
	name string
	h    *tar.Header
}

func (u *unpacker) stream(r io.Reader) error {
	in := tar.NewReader(&contextReader{u.ctx, r})
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if err := u.entry(h, in); err != nil {
			return err
		}
	}
	// What pads the stream is read too, so that its sender comes to its end.
	if _, err := io.Copy(io.Discard, &contextReader{u.ctx, r}); err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	return u.finishDirs()
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := u.top.name(h)
	if err != nil {
		return err
	}
	if u.single != "" {
		if name != "." || h.Typeflag == tar.TypeDir {
			return fmt.Errorf("%w: %q is not the file that was asked for", ErrEscape, h.Name)
		}
		name = u.single
	} else if name == "." && h.Typeflag != tar.TypeDir {
		return fmt.Errorf("%w: %q is not the directory that was asked for", ErrEscape, h.Name)
	}
	if parent := filepath.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.file(name, h, content)
	case tar.TypeSymlink:
		err = u.symlink(name, h)
	case tar.TypeLink:
		err = u.hardLink(name, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		u.remark("%q is a device or a pipe: left out", h.Name)
		return nil
	default:
		return fmt.Errorf("unpack %q: entry of unknown type %q", h.Name, h.Typeflag)
	}
	if err == nil {
		u.stats.Files++
	}
	return err
}

func (u *unpacker) dir(name string, h *tar.Header) error {
	if name == "." {
		if !u.options.KeepTop {
			u.dirs = append(u.dirs, madeDir{name, h})
		}
		return nil
	}
	st, err := u.root.Lstat(name)
	switch {
	case err == nil && st.IsDir():
	case err == nil && st.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("make directory %s: a file of that name is there", name)
	case err == nil: // a link: the directory takes its place
		if err := u.root.Remove(name); err != nil {
			return fmt.Errorf("replace link: %w", err)
		}
		fallthrough
	default:
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	u.dirs = append(u.dirs, madeDir{name, h})
	return nil
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if err := u.makeWay(name); err != nil {
		return err
	}
	if u.single == "" {
		return u.write(name, h, content)
	}
	// The old file stays until the new one is whole.
	part := fmt.Sprintf(".%.200s.%s", name, rand.Text()[:8])
	if err := u.write(part, h, content); err != nil {
		return err
	}
	if err := u.root.Rename(part, name); err != nil {
		return errors.Join(fmt.Errorf("write file: %w", err), u.root.Remove(part))
	}
	return nil
}

// write makes a file; of one that it could not finish nothing is left.
func (u *unpacker) write(name string, h *tar.Header, content io.Reader) (err error) {
	// O_EXCL: never into a file or through a link that is there.
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			err = errors.Join(err, u.root.Remove(name))
		}
	}()
	n, err := copyWithHoles(f, content)
	u.stats.Bytes += n
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if u.chown {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	if err := f.Chmod(u.mode(h)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	if err := u.times(name, h); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// copyWithHoles copies a file and leaves holes where there are only zeroes.
func copyWithHoles(f *os.File, r io.Reader) (n int64, err error) {
	buf := make([]byte, 64<<10)
	hole := false
	for err == nil {
		m := 0
		for m < len(buf) && err == nil { // whole blocks, not what a Read gives
			var k int
			k, err = r.Read(buf[m:])
			m += k
		}
		if b := buf[:m]; m > 0 {
			if hole = b[0] == 0 && bytes.Equal(b[1:], b[:m-1]); !hole {
				if _, err := f.WriteAt(b, n); err != nil {
					return n, err
				}
			}
			n += int64(m)
		}
	}
	if err == io.EOF {
		err = nil
		if hole {
			err = f.Truncate(n)
		}
	}
	return n, err
}

// makeWay removes what an entry replaces. Files are never written in place: an
// old one may be a link, or have other names.
func (u *unpacker) makeWay(name string) error {
	st, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at destination: %w", err)
	case st.IsDir():
		return fmt.Errorf("write %s: a directory of that name is there", name)
	case st.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0:
		return fmt.Errorf("write %s: it is neither a file nor a directory", name)
	case u.single != "" && st.Mode().IsRegular():
		return nil // replaced by renaming
	}
	if err := u.root.Remove(name); err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	return nil
}

func (u *unpacker) symlink(name string, h *tar.Header) error {
	if err := u.replace(name); err != nil {
		return err
	}
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return fmt.Errorf("make link: %w", err)
	}
	if u.chown {
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	return nil
}

func (u *unpacker) hardLink(name string, h *tar.Header) error {
	if u.single != "" {
		return fmt.Errorf("%w: %q is a link to %q", ErrEscape, h.Name, h.Linkname)
	}
	old, err := beneath(u.top.base, h.Linkname)
	if err != nil {
		return err
	}
	if old == name {
		return nil
	}
	if err := u.replace(name); err != nil {
		return err
	}
	if err := u.root.Link(old, name); err != nil {
		return fmt.Errorf("make link: %w", err)
	}
	return nil
}

// replace removes a file or link that stands where a link is to be.
func (u *unpacker) replace(name string) error {
	if err := u.makeWay(name); err != nil {
		return err
	}
	return ignoreMissing(u.root.Remove(name))
}

// finishDirs gives directories their owners, modes and times, deepest last made
// first, when nothing more is to be written into them.
func (u *unpacker) finishDirs() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		st, err := u.root.Lstat(d.name)
		if err != nil || !st.IsDir() {
			continue // a later entry took its place
		}
		if u.chown {
			if err := u.root.Lchown(d.name, d.h.Uid, d.h.Gid); err != nil {
				return fmt.Errorf("set owner: %w", err)
			}
		}
		if err := u.root.Chmod(d.name, u.mode(d.h)); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
		if err := u.times(d.name, d.h); err != nil {
			return err
		}
	}
	return nil
}

// mode is that of an entry, without what would make a guest's program run as
// another user of this host. The sticky bit, and set-gid on directories, give
// no rights.
func (u *unpacker) mode(h *tar.Header) fs.FileMode {
	mode := h.FileInfo().Mode()
	keep := mode & (fs.ModePerm | fs.ModeSticky)
	if h.Typeflag == tar.TypeDir {
		return keep | mode&fs.ModeSetgid
	}
	if mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		u.remark("%q was set-uid or set-gid: it is not here", h.Name)
	}
	return keep
}

func (u *unpacker) times(name string, h *tar.Header) error {
	if h.ModTime.Equal(time.Unix(0, 0)) {
		return nil
	}
	if err := u.root.Chtimes(name, time.Time{}, h.ModTime); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

func (u *unpacker) remark(format string, args ...any) {
	if u.options.Remark != nil {
		u.options.Remark(fmt.Sprintf(format, args...))
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
