package builder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	imageBlock = 4096
	// inlineXattrs is what fits into a 256-byte inode beside its own fields.
	inlineXattrs = 96
	// spareInodes are those ext4 keeps for itself, lost+found and some more.
	spareInodes = 64
)

// treeSize is what a tree takes in an ext4 image.
type treeSize struct {
	inodes       int64 // each file once, however many names it has
	blocks       int64 // of data, directories, attributes and block lists
	contentBytes int64 // Image.SizeBytes
	// xattrs are the extended attributes, by path from "/".
	xattrs map[string]map[string]string
}

// imageBytes is the size of the image for the tree, in whole MiB. It counts
// what a file system needs beside the content: inode tables, bitmaps and group
// descriptors, whose share is 1/32 at most, and a fixed rest.
func (t treeSize) imageBytes() int64 {
	inodes := t.inodes + spareInodes
	need := t.blocks*imageBlock + inodes*256
	need += need/32 + 4<<20
	// A group of blocks has one block of inode bitmap, so many empty files need
	// many groups, whose blocks then stay holes.
	const perGroup, groupBytes = 8 * imageBlock, 8 * imageBlock * imageBlock
	if groups := (inodes + perGroup - 1) / perGroup; groups > 1 {
		need = max(need, (groups-1)*groupBytes+16<<20)
	}
	return (need + 1<<20 - 1) &^ (1<<20 - 1)
}

// measure walks a tree once.
func measure(ctx context.Context, dir string) (treeSize, error) {
	m := measurer{root: dir, seen: map[[2]uint64]bool{}, treeSize: treeSize{xattrs: map[string]map[string]string{}}}
	err := m.dir(ctx, "/")
	return m.treeSize, err
}

type measurer struct {
	treeSize
	root string
	seen map[[2]uint64]bool // device and inode of files with several names
}

func (m *measurer) dir(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(m.root, dir), &st); err != nil {
		return fmt.Errorf("measure %s: %w", dir, err)
	}
	if err := m.inode(dir, &st); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(m.root, dir))
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	names := int64(24) // "." and ".."
	for _, e := range entries {
		names += int64(8+len(e.Name())+3) &^ 3
		p := filepath.Join(dir, e.Name())
		if e.IsDir() {
			if err := m.dir(ctx, p); err != nil {
				return err
			}
			continue
		}
		if err := unix.Lstat(filepath.Join(m.root, p), &st); err != nil {
			return fmt.Errorf("measure %s: %w", p, err)
		}
		if st.Nlink > 1 {
			id := [2]uint64{st.Dev, st.Ino}
			if m.seen[id] {
				continue
			}
			m.seen[id] = true
		}
		if err := m.inode(p, &st); err != nil {
			return err
		}
	}
	// Every block loses up to a name's length at its end.
	m.blocks += blocksFor(names+names/8) + 1
	return nil
}

// inode counts one inode and its content; for directories without their names.
func (m *measurer) inode(p string, st *unix.Stat_t) error {
	m.inodes++
	attrs, err := readXattrs(filepath.Join(m.root, p))
	if err != nil {
		return err
	}
	if len(attrs) > 0 {
		m.xattrs[p] = attrs
		n := 0
		for name, value := range attrs {
			n += (16+len(name)+3)&^3 + (len(value)+3)&^3
		}
		if n > inlineXattrs {
			m.blocks++
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data := st.Size
		if st.Blocks*512 < st.Size {
			// Holes, or a file system that compresses: only a look tells.
			if data, err = dataBytes(filepath.Join(m.root, p), st.Size); err != nil {
				return err
			}
		}
		m.contentBytes += data
		// A list of extents takes a block for every 340 of them, and one more
		// for 4 or less in the inode; data in bits is what makes many.
		m.blocks += blocksFor(data) + 1 + blocksFor(data)/2048
	case unix.S_IFLNK:
		m.contentBytes += st.Size
		if st.Size >= 60 {
			m.blocks++
		}
	}
	return nil
}

func blocksFor(bytes int64) int64 { return (bytes + imageBlock - 1) / imageBlock }

// dataBytes counts what of a file is not a hole, in whole blocks.
func dataBytes(p string, size int64) (int64, error) {
	f, err := os.Open(p)
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	defer f.Close()
	total := int64(0)
	err = eachData(f, size, func(first, end int64) {
		total += (end+imageBlock-1)&^(imageBlock-1) - first&^(imageBlock-1)
	})
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", p, err)
	}
	return min(total, size), nil
}

// readXattrs returns the extended attributes of a file, nil for none.
func readXattrs(p string) (map[string]string, error) {
	var list [4096]byte
	n, err := unix.Llistxattr(p, list[:])
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes of %s: %w", p, err)
	}
	out := map[string]string{}
	for _, name := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		size, err := unix.Lgetxattr(p, name, nil)
		value := make([]byte, size)
		if err == nil && size > 0 {
			size, err = unix.Lgetxattr(p, name, value)
		}
		if err != nil {
			return nil, fmt.Errorf("read attribute %s of %s: %w", name, p, err)
		}
		out[name] = string(value[:size])
	}
	return out, nil
}
