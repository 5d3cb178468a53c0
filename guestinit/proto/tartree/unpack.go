package tartree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UnpackOptions say where a stream goes.
type UnpackOptions struct {
	// Path is where to: an existing directory, or with Rename what the single
	// top entry of the stream becomes (see proto.PutRequest).
	Path     string
	Rename   bool
	Contents bool // with Rename: the children of the top entry go into an existing directory
	Parents  bool // make missing directories above
	// Trusted streams may make device nodes, set setuid and setgid bits and
	// privileged attributes, and may pass through links that were in the
	// destination before. Others are treated as what a stranger sent.
	Trusted bool
}

// ErrRefused is wrapped when an untrusted stream has something that is not
// taken from strangers.
var ErrRefused = errors.New("not taken from an untrusted source")

// ErrArchive is wrapped when the stream itself is damaged.
var ErrArchive = errors.New("damaged tar stream")

// Unpack reads a tar stream to its end. After an error, what came before stays.
func Unpack(r io.Reader, o UnpackOptions) (err error) {
	where, err := locate(o)
	if err != nil {
		return err
	}
	root, err := unix.Open(where.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return named("open directory", where.dir, err)
	}
	defer unix.Close(root)
	u := &unpacker{
		tr: tar.NewReader(r), where: where, trusted: o.Trusted, buf: make([]byte, chunk),
		tree: tree{root: root, whole: where.dir == "/", passLinks: o.Trusted},
		// A name that nobody else uses; the sequence makes each one new.
		temp: tempPrefix + strconv.FormatUint(rand.Uint64(), 36) + "-",
	}
	defer u.tree.close()
	for {
		h, err := u.tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
	// What follows the end mark is padding; the sender may still be writing it.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return damaged(err)
	}
	return nil
}

// damaged is an error of reading the stream. Those of the reader below pass as
// they are, those of the format are marked.
func damaged(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	return err
}

type unpacker struct {
	tr      *tar.Reader
	where   *place
	tree    tree
	trusted bool
	temp    string
	serial  int
	buf     []byte
}

func (u *unpacker) entry(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if !u.trusted {
		if what := strange(h); what != "" {
			return fmt.Errorf("unpack %s: %s: %w", h.Name, what, ErrRefused)
		}
		h.Mode &^= 0o6000
	}
	name, err := u.where.entry(h)
	if err != nil {
		return err
	}
	if name == "." { // the destination itself keeps what it has
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("unpack %s: %w", h.Name, ErrConflict)
		}
		return nil
	}
	if h.Typeflag == tar.TypeDir {
		err = u.directory(h, name)
	} else {
		err = u.replace(h, name)
	}
	if err != nil && !errors.Is(err, ErrUnsafe) {
		return named("unpack", h.Name, err)
	}
	return err
}

// strange says what about an entry is not taken from strangers.
func strange(h *tar.Header) string {
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		return "device node"
	case tar.TypeGNUSparse:
		return "sparse file"
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			// Pack makes none, and a few bytes may stand for years of zeroes.
			return "sparse file"
		}
	}
	return ""
}

func (u *unpacker) directory(h *tar.Header, name string) error {
	parent, base, err := u.tree.parent(name)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(parent, base, 0o700); err != nil && err != unix.EEXIST {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		// A link to a directory stands for it and keeps what it has.
		if linked, ok := u.tree.lookup(name); ok {
			unix.Close(linked)
			return nil
		}
		if err == unix.ENOTDIR || err == unix.ELOOP {
			err = ErrConflict
		}
		return err
	}
	if err := u.metadata(fd, h); err != nil {
		unix.Close(fd)
		return err
	}
	u.tree.enter(name, fd, h.ModTime)
	return nil
}

const tempPrefix = ".sietch-"

// Temporary reports whether a file is called as those are that Unpack makes
// before it gives them the name they are to have.
func Temporary(name string) bool {
	name, ok := strings.CutPrefix(name, tempPrefix)
	random, serial, dash := strings.Cut(name, "-")
	if !ok || !dash {
		return false
	}
	_, err1 := strconv.ParseUint(random, 36, 64)
	_, err2 := strconv.ParseUint(serial, 10, 64)
	return err1 == nil && err2 == nil
}

// replace makes a file beside the name it is to have and renames it.
func (u *unpacker) replace(h *tar.Header, name string) (err error) {
	parent, base, err := u.tree.parent(name)
	if err != nil {
		return err
	}
	u.serial++
	temp := u.temp + strconv.Itoa(u.serial)
	if err := u.make(h, parent, temp); err != nil {
		unix.Unlinkat(parent, temp, 0)
		return err
	}
	if h.Typeflag != tar.TypeLink {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(h.ModTime.UnixNano())}
		err = unix.UtimesNanoAt(parent, temp, ts, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.Renameat(parent, temp, parent, base)
	}
	// Two names of one file are left as they are by rename, without an error.
	if err != nil || h.Typeflag == tar.TypeLink {
		unix.Unlinkat(parent, temp, 0)
	}
	if err == unix.EISDIR || err == unix.EEXIST || err == unix.ENOTEMPTY {
		return ErrConflict
	}
	return err
}

func (u *unpacker) make(h *tar.Header, parent int, temp string) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		fd, err := unix.Openat(parent, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), temp)
		err = u.content(f, h.Size)
		if err == nil {
			err = u.metadata(fd, h)
		}
		if e := f.Close(); err == nil {
			err = cause(e)
		}
		return err
	case tar.TypeSymlink:
		u.tree.noteLink(h.Linkname)
		if err := unix.Symlinkat(h.Linkname, parent, temp); err != nil {
			return err
		}
		return owner(unix.Fchownat(parent, temp, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW))
	case tar.TypeLink:
		return u.link(h, parent, temp)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.node(h, parent, temp)
	}
	return fmt.Errorf("%w: unknown type %q", ErrArchive, h.Typeflag)
}

func (u *unpacker) link(h *tar.Header, parent int, temp string) error {
	target, err := u.where.name(h.Linkname)
	if err != nil {
		return err
	}
	dir, base, err := u.tree.existing(target)
	if err != nil {
		return fmt.Errorf("hard link to %s: %w", h.Linkname, err)
	}
	defer unix.Close(dir)
	if err := unix.Linkat(dir, base, parent, temp, 0); err != nil {
		return fmt.Errorf("hard link to %s: %w", h.Linkname, err)
	}
	return nil
}

func (u *unpacker) node(h *tar.Header, parent int, temp string) error {
	mode := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
	dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	if err := unix.Mknodat(parent, temp, mode|0o600, int(dev)); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, temp, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := owner(unix.Fchownat(fd, "", h.Uid, h.Gid, unix.AT_EMPTY_PATH)); err != nil {
		return err
	}
	// fchmod refuses a descriptor that was not opened for reading or writing,
	// and opening a device may do anything.
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), uint32(h.Mode&0o7777))
}

// content copies a file, leaving holes where a chunk is zeroes.
func (u *unpacker) content(f *os.File, size int64) error {
	var at int64
	hole := false
	for at < size {
		n, err := io.ReadFull(u.tr, u.buf[:min(chunk, size-at)])
		if err != nil {
			return damaged(eofInside(err))
		}
		b := u.buf[:n]
		if hole = n == chunk && allZero(b); !hole {
			if _, err := f.WriteAt(b, at); err != nil {
				return cause(err)
			}
		}
		at += int64(n)
	}
	if hole {
		return cause(f.Truncate(size))
	}
	return nil
}

func eofInside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// allZero compares b with itself shifted by one, which is quick.
func allZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// metadata sets owner, mode and attributes, in the order in which one does not
// undo the other: a change of owner clears setuid and file capabilities.
func (u *unpacker) metadata(fd int, h *tar.Header) error {
	if err := owner(unix.Fchown(fd, h.Uid, h.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	return writeXattrs(fd, h.PAXRecords, u.trusted)
}

// owner makes an unprivileged user the owner of what it unpacks.
func owner(err error) error {
	if err == unix.EPERM && os.Geteuid() != 0 {
		return nil
	}
	return err
}
