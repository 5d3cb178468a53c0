package builder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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
	need = max(need, (inodes+perGroup-1)/perGroup*groupBytes)
	return (need + 1<<20 - 1) &^ (1<<20 - 1)
}

// measure walks a tree once.
func measure(ctx context.Context, dir string) (treeSize, error) {
	var t treeSize
	seen := map[[2]uint64]bool{} // device and inode of files with several names
	err := measureDir(ctx, dir, seen, &t)
	return t, err
}

func measureDir(ctx context.Context, dir string, seen map[[2]uint64]bool, t *treeSize) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("measure %s: %w", dir, err)
	}
	if err := measureInode(dir, &st, t); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	names := int64(24) // "." and ".."
	for _, e := range entries {
		names += int64(8+len(e.Name())+3) &^ 3
		p := filepath.Join(dir, e.Name())
		if e.IsDir() {
			if err := measureDir(ctx, p, seen, t); err != nil {
				return err
			}
			continue
		}
		if err := unix.Lstat(p, &st); err != nil {
			return fmt.Errorf("measure %s: %w", p, err)
		}
		if st.Nlink > 1 {
			id := [2]uint64{st.Dev, st.Ino}
			if seen[id] {
				continue
			}
			seen[id] = true
		}
		if err := measureInode(p, &st, t); err != nil {
			return err
		}
	}
	// Every block loses up to a name's length at its end.
	t.blocks += blocksFor(names+names/8) + 1
	return nil
}

// measureInode counts one inode and its content; for directories without their
// names.
func measureInode(p string, st *unix.Stat_t, t *treeSize) error {
	t.inodes++
	n, err := xattrBytes(p)
	if err != nil {
		return err
	}
	if n > inlineXattrs {
		t.blocks++
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data := st.Size
		if st.Blocks*512 < st.Size {
			// Holes, or a file system that compresses: only a look tells.
			if data, err = dataBytes(p, st.Size); err != nil {
				return err
			}
		}
		t.contentBytes += data
		// A list of extents takes a block for every 340 of them, and one more
		// for 4 or less in the inode; data in bits is what makes many.
		t.blocks += blocksFor(data) + 1 + blocksFor(data)/2048
	case unix.S_IFLNK:
		t.contentBytes += st.Size
		if st.Size >= 60 {
			t.blocks++
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

// xattrBytes is the space the extended attributes of a file take, 0 for none.
func xattrBytes(p string) (int64, error) {
	var list [4096]byte
	n, err := unix.Llistxattr(p, list[:])
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list attributes of %s: %w", p, err)
	}
	total := int64(0)
	for start, k := 0, 0; k < n; k++ {
		if list[k] != 0 {
			continue
		}
		name := string(list[start:k])
		size, err := unix.Lgetxattr(p, name, nil)
		if err != nil {
			return 0, fmt.Errorf("read attribute %s of %s: %w", name, p, err)
		}
		total += int64(16+len(name)+3)&^3 + int64(size+3)&^3
		start = k + 1
	}
	return total, nil
}
