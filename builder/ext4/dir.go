package ext4

import (
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"sort"

	"golang.org/x/sys/unix"
)

// maxDirSize bounds what is read into memory for one directory.
const maxDirSize = 1 << 30

// Entry is one name of a directory.
type Entry struct {
	Name   string
	Number uint32
}

// ReadDir returns the names of a directory but "." and "..", sorted.
func (fs *FS) ReadDir(i *Inode) ([]Entry, error) {
	if !i.IsDir() {
		return nil, fmt.Errorf("read directory: inode %d is none", i.Number)
	}
	if i.Size > maxDirSize || i.Size%fs.blockSize != 0 {
		return nil, fmt.Errorf("%w: directory of %d bytes", ErrCorrupt, i.Size)
	}
	r, err := fs.open(i)
	if err != nil {
		return nil, err
	}
	block := make([]byte, fs.blockSize)
	var out []Entry
	for {
		if _, err := io.ReadFull(r, block); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read directory: %w", err)
		}
		if out, err = appendEntries(out, block, i.Number); err != nil {
			return nil, err
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Name < out[b].Name })
	for k := 1; k < len(out); k++ {
		if out[k].Name == out[k-1].Name {
			return nil, fmt.Errorf("%w: name %q twice in inode %d", ErrCorrupt, out[k].Name, i.Number)
		}
	}
	return out, nil
}

// appendEntries reads one block of a directory. Blocks of a hash index and the
// checksum at the end of a block look like unused entries to it.
func appendEntries(out []Entry, block []byte, dir uint32) ([]Entry, error) {
	le := binary.LittleEndian
	for off := 0; off < len(block); {
		if off+8 > len(block) {
			return nil, fmt.Errorf("%w: directory entry in inode %d", ErrCorrupt, dir)
		}
		e := block[off:]
		size := int(le.Uint16(e[4:]))
		if size == 0xFFFF || size == 0 { // how 64 KiB blocks write 65536
			size = 1 << 16
		}
		nameLen := int(e[6])
		if size < 8 || size%4 != 0 || off+size > len(block) || 8+nameLen > size {
			return nil, fmt.Errorf("%w: directory entry in inode %d", ErrCorrupt, dir)
		}
		if ino := le.Uint32(e); ino != 0 {
			name := string(e[8 : 8+nameLen])
			if name != "." && name != ".." {
				if err := checkName(name); err != nil {
					return nil, err
				}
				out = append(out, Entry{name, ino})
			}
		}
		off += size
	}
	return out, nil
}

func checkName(name string) error {
	if name == "" {
		return fmt.Errorf("%w: empty file name", ErrCorrupt)
	}
	for k := range len(name) {
		if name[k] == '/' || name[k] == 0 {
			return fmt.Errorf("%w: file name %q", ErrCorrupt, name)
		}
	}
	return nil
}

// Readlink returns the target of a symbolic link.
func (fs *FS) Readlink(i *Inode) (string, error) {
	if i.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", fmt.Errorf("read link: inode %d is none", i.Number)
	}
	if i.Size > unix.PathMax {
		return "", fmt.Errorf("%w: symbolic link of %d bytes", ErrCorrupt, i.Size)
	}
	if i.Size < 60 && i.flags()&flagExtents == 0 { // kept in the inode itself
		return string(i.raw[0x28 : 0x28+i.Size]), nil
	}
	r, err := fs.open(i)
	if err != nil {
		return "", err
	}
	b := make([]byte, i.Size)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", fmt.Errorf("read link: %w", err)
	}
	return string(b), nil
}

// Walk calls fn for the root, "/", and everything below it, parents first and
// names in order. An inode with several names is visited for each.
func (fs *FS) Walk(fn func(p string, i *Inode) error) error {
	root, err := fs.Inode(RootInode)
	if err != nil {
		return err
	}
	// A directory has one place; meeting one again is a loop.
	seen := map[uint32]bool{}
	var walk func(p string, i *Inode) error
	walk = func(p string, i *Inode) error {
		if err := fn(p, i); err != nil || !i.IsDir() {
			return err
		}
		if seen[i.Number] {
			return fmt.Errorf("%w: directory %s has two places", ErrCorrupt, p)
		}
		seen[i.Number] = true
		entries, err := fs.ReadDir(i)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, e := range entries {
			child, err := fs.Inode(e.Number)
			if err != nil {
				return fmt.Errorf("%s: %w", path.Join(p, e.Name), err)
			}
			if err := walk(path.Join(p, e.Name), child); err != nil {
				return err
			}
		}
		return nil
	}
	return walk("/", root)
}
