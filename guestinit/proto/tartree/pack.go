package tartree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PackOptions say what to read.
type PackOptions struct {
	// Path of a file or directory. A link at its end is packed as a link,
	// unless FollowLink is set or the path ends in "/" or "/.".
	Path       string
	FollowLink bool
	// Name of the top entry; empty means [BaseName] of Path.
	Name string
	// Skip, when set, leaves out what it returns true for, and a directory with
	// all in it. path is beneath the top entry.
	Skip func(path string, dir bool) bool
	// Exact keeps times to the nanosecond, which makes headers longer.
	Exact bool
}

// BaseName is the name that the top entry has: the last element of the path,
// or "rootfs" where that is the root or says nothing.
func BaseName(p string) string {
	base := path.Base(path.Clean(p))
	if base == "/" || base == "." || base == ".." {
		return "rootfs"
	}
	return base
}

// Pack writes a tar stream, with its end. An error of w is returned as it is.
func Pack(w io.Writer, o PackOptions) error {
	tw := tar.NewWriter(w)
	if err := Add(tw, o); err != nil {
		return err
	}
	return tw.Close()
}

// Add is Pack into a stream that holds more.
func Add(tw *tar.Writer, o PackOptions) error {
	name, src := o.Name, o.Path
	if name == "" {
		name = BaseName(src)
	}
	if o.FollowLink || strings.HasSuffix(src, "/") || strings.HasSuffix(src, "/.") {
		target, err := filepath.EvalSymlinks(src)
		if err != nil {
			return named("read", o.Path, cause(err))
		}
		if fi, err := os.Stat(target); err == nil && !fi.IsDir() && strings.HasSuffix(strings.TrimSuffix(src, "."), "/") {
			return named("read", o.Path, unix.ENOTDIR)
		}
		src = target
	}
	dir, err := unix.Open(filepath.Dir(src), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return named("read", o.Path, err)
	}
	defer unix.Close(dir)
	p := &packer{tw: tw, buf: make([]byte, chunk), exact: o.Exact}
	if o.Skip != nil {
		p.skip = func(as string, dir bool) bool { return o.Skip(strings.TrimPrefix(as, name+"/"), dir) }
	}
	last := filepath.Base(src)
	if last == "/" {
		last = "."
	}
	err = p.entry(dir, last, name, 0)
	if errors.Is(err, unix.ENOENT) {
		return named("read", o.Path, unix.ENOENT)
	}
	return err
}

// chunk is how much is copied at once, and the smallest hole.
const chunk = 32 << 10

type packer struct {
	tw    *tar.Writer
	buf   []byte
	links map[inode]string // first name of files with several
	skip  func(as string, dir bool) bool
	exact bool
}

type inode struct{ dev, ino uint64 }

// entry writes one file and, for a directory, what is in it. dev is the file
// system of its parent, 0 for the top. It returns ENOENT for a file that is
// not there and has left no trace in the stream.
func (p *packer) entry(dir int, name, as string, dev uint64) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return named("read", as, err)
	}
	if p.skip != nil && dev != 0 && p.skip(as, st.Mode&unix.S_IFMT == unix.S_IFDIR) {
		return nil
	}
	h := &tar.Header{
		Name: as, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
	if p.exact {
		h.ModTime, h.Format = time.Unix(st.Mtim.Unix()), tar.FormatPAX
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(dir, name, h, st)
	case unix.S_IFDIR:
		return p.directory(dir, name, h, dev)
	case unix.S_IFLNK:
		target, err := readlink(dir, name)
		if err != nil {
			return named("read", as, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default: // a socket is nothing without the process that listens
		return nil
	}
	if p.linked(h, st) {
		h.Typeflag = tar.TypeLink
	}
	return p.header(h)
}

// linked notes a file with several names and reports whether the stream has
// it already, under the name that h.Linkname then is.
func (p *packer) linked(h *tar.Header, st unix.Stat_t) bool {
	if st.Nlink < 2 {
		return false
	}
	id := inode{st.Dev, st.Ino}
	if first, ok := p.links[id]; ok {
		h.Linkname = first
		return true
	}
	if p.links == nil {
		p.links = make(map[inode]string)
	}
	p.links[id] = h.Name
	return false
}

func (p *packer) file(dir int, name string, h *tar.Header, st unix.Stat_t) error {
	if p.linked(h, st) {
		h.Typeflag = tar.TypeLink
		return p.header(h)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return named("read", h.Name, err)
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return named("read", h.Name, err)
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG || now.Ino != st.Ino {
		return named("read", h.Name, unix.ENOENT) // replaced in between
	}
	h.Typeflag, h.Size = tar.TypeReg, now.Size
	if h.PAXRecords, err = readXattrs(fd); err != nil {
		return named("read attributes of", h.Name, err)
	}
	var from io.Reader = f
	if invented(fd) {
		text, err := io.ReadAll(io.LimitReader(f, maxInvented))
		if err != nil {
			return named("read", h.Name, err)
		}
		from, h.Size = bytes.NewReader(text), int64(len(text))
	}
	if err := p.header(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.tw}, io.LimitReader(from, h.Size), p.buf)
	if err != nil {
		return err
	}
	if n < h.Size { // it shrank; the header is already out
		clear(p.buf)
		for ; n < h.Size && err == nil; n += chunk {
			_, err = p.tw.Write(p.buf[:min(chunk, h.Size-n)])
		}
	}
	return err
}

// maxInvented bounds what is read of a file whose size is not known beforehand.
const maxInvented = 16 << 20

// invented says whether the kernel makes the content of a file up as it is read,
// as it does in /proc and /sys: the size it gives for it means nothing.
func invented(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch int64(fs.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
		return true
	}
	return false
}

// onlyWriter hides ReadFrom, which would bypass the buffer.
type onlyWriter struct{ io.Writer }

func (p *packer) directory(dir int, name string, h *tar.Header, dev uint64) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return named("read", h.Name, err)
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return named("read", h.Name, err)
	}
	as := h.Name
	h.Typeflag, h.Name = tar.TypeDir, as+"/"
	if h.PAXRecords, err = readXattrs(fd); err != nil {
		return named("read attributes of", as, err)
	}
	if err := p.header(h); err != nil {
		return err
	}
	if dev != 0 && st.Dev != dev && KernelFiles(fd) {
		return nil
	}
	for {
		names, err := f.Readdirnames(256) // a directory may have millions
		for _, n := range names {
			// One that has gone since its name was read was just not there.
			if err := p.entry(fd, n, as+"/"+n, st.Dev); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return named("read directory", as, cause(err))
		}
	}
}

func (p *packer) header(h *tar.Header) error {
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", h.Name, err)
	}
	return nil
}

func named(verb, name string, err error) error { return fmt.Errorf("%s %s: %w", verb, name, err) }

func readlink(dir int, name string) (string, error) {
	for size := 256; ; size *= 4 {
		b := make([]byte, size)
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(b[:n]), nil
		}
	}
}

// KernelFiles reports whether a directory is on a file system that shows kernel
// state instead of files.
func KernelFiles(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.BINFMTFS_MAGIC, 0x19800202: // mqueue
		return true
	}
	return false
}

// cause strips operation and path from an error of package os.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
