package ext4

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstFree is the first inode number that is not reserved.
const firstFree = 11

// node is one inode to be written.
type node struct {
	number uint32
	parent *node
	path   string // of its first name, below the root of the source
	mode   uint32
	uid    uint32
	gid    uint32
	links  uint32
	size   int64
	rdev   uint64
	mtime  time.Time
	xattrs map[string]string
	link   string   // target of a symbolic link
	names  []dirent // of a directory, in order
	blocks int64    // allocated, for i_blocks
}

// dirent is a name in a directory.
type dirent struct {
	name string
	node *node
}

// scanner reads a tree into nodes.
type scanner struct {
	root  string
	nodes []*node // in the order of their numbers, the root first
	first map[[2]uint64]*node
}

// scan reads the names and attributes of a whole tree. Names are in the order of
// their bytes, whatever order the source lists them in, and numbers follow
// them, so that equal trees give equal images.
func scan(ctx context.Context, root string) ([]*node, error) {
	s := &scanner{root: root, first: map[[2]uint64]*node{}}
	top, err := s.node("/")
	if err != nil {
		return nil, err
	}
	if top.mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("scan %s: not a directory", root)
	}
	top.parent = top
	if err := s.dir(ctx, top); err != nil {
		return nil, err
	}
	return s.nodes, nil
}

// node reads one file and gives it the next number.
func (s *scanner) node(p string) (*node, error) {
	full := filepath.Join(s.root, p)
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return nil, fmt.Errorf("scan %s: %w", p, err)
	}
	kind := st.Mode & unix.S_IFMT
	id := [2]uint64{st.Dev, st.Ino}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		if n := s.first[id]; n != nil {
			n.links++
			return n, nil
		}
	}
	n := &node{
		path: p, mode: st.Mode, uid: st.Uid, gid: st.Gid, links: 1, mtime: time.Unix(st.Mtim.Unix()),
	}
	switch kind {
	case unix.S_IFREG:
		n.size = st.Size
	case unix.S_IFLNK:
		target, err := os.Readlink(full)
		if err != nil {
			return nil, fmt.Errorf("scan %s: %w", p, err)
		}
		n.link, n.size = target, int64(len(target))
	case unix.S_IFCHR, unix.S_IFBLK:
		n.rdev = st.Rdev
	}
	var err error
	if n.xattrs, err = readXattrs(full); err != nil {
		return nil, fmt.Errorf("scan %s: %w", p, err)
	}
	n.number = RootInode
	if len(s.nodes) > 0 {
		n.number = firstFree + uint32(len(s.nodes)) - 1
	}
	s.nodes = append(s.nodes, n)
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		s.first[id] = n
	}
	return n, nil
}

func (s *scanner) dir(ctx context.Context, n *node) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(s.root, n.path)) // sorted
	if err != nil {
		return fmt.Errorf("scan %s: %w", n.path, err)
	}
	n.links = 2
	n.names = make([]dirent, 0, len(entries))
	for _, e := range entries {
		child, err := s.node(filepath.Join(n.path, e.Name()))
		if err != nil {
			return err
		}
		n.names = append(n.names, dirent{e.Name(), child})
		if child.mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		child.parent = n
		n.links++
		if err := s.dir(ctx, child); err != nil {
			return err
		}
	}
	return nil
}

// readXattrs returns the extended attributes of a file, nil for none.
func readXattrs(p string) (map[string]string, error) {
	var list [4096]byte
	names := list[:]
	n, err := unix.Llistxattr(p, names)
	if err == unix.ERANGE {
		if n, err = unix.Llistxattr(p, nil); err == nil {
			names = make([]byte, n)
			n, err = unix.Llistxattr(p, names)
		}
	}
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes: %w", err)
	}
	out := map[string]string{}
	for _, name := range strings.Split(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		size, err := unix.Lgetxattr(p, name, nil)
		value := make([]byte, size)
		if err == nil && size > 0 {
			size, err = unix.Lgetxattr(p, name, value)
		}
		if err != nil {
			return nil, fmt.Errorf("read attribute %s: %w", name, err)
		}
		out[name] = string(value[:size])
	}
	return out, nil
}
