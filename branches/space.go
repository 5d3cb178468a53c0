package branches

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The index writes through memory maps of files that are longer than what is on
// disk. On a full file system the kernel answers such a write with SIGBUS, which
// ends the process. Two things keep that from happening: nothing is written
// unless there is room for it and for what the index does on the side, and a
// reserve of blocks is given back when even opening the store would not fit.
const (
	// indexSlackBytes is what the index may need beside what it is told to
	// store: the log of a memtable, and the table it becomes at close.
	indexSlackBytes = 2*memtableBytes + 8<<20
	// leastBytes is what a memtable that is written out takes, with room to
	// spare.
	leastBytes   = 2 * memtableBytes
	reserveName  = "reserve"
	reserveBytes = indexSlackBytes
)

// freeBytes is how much an ordinary write may still take.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("stat file system of %s: %w", dir, err)
		}
		free := st.Bavail
		if os.Geteuid() == 0 {
			free = max(free, freeToRoot(st))
		}
		return int64(min(free, 1<<62/uint64(st.Bsize))) * st.Bsize, nil
	}
}

// freeToRoot is how many blocks root may take: those kept for it, too, which its
// writes through a map do. Of ext4 not all: a fiftieth of it, 4096 blocks at
// most, is for its own metadata, and free to statfs's mind
// (ext4_calculate_resv_clusters of Linux).
func freeToRoot(st unix.Statfs_t) uint64 {
	if st.Type != unix.EXT4_SUPER_MAGIC {
		return st.Bfree
	}
	return st.Bfree - min(st.Bfree, st.Blocks/50, 4096)
}

// needSpace refuses a write of n bytes that could fill the disk. What is asked
// for beside n covers the index's side work, merging all its tables included.
func (s *Store) needSpace(n int64) error {
	free, err := s.free(s.dir)
	if err != nil {
		return err
	}
	if need := n + indexSlackBytes + s.index.bytes(); free < need {
		return noSpace("write store", free, need)
	}
	return nil
}

func noSpace(what string, free, need int64) error {
	return fmt.Errorf("%s: %w: %.1f MiB are free, %.1f MiB are needed: %w",
		what, ErrNoSpace, float64(free)/(1<<20), float64(need)/(1<<20), unix.ENOSPC)
}

// useReserve makes sure of the least the index needs to be opened, collected
// or closed, giving back as much of the reserve as it takes.
func useReserve(dir string) error {
	free, err := freeBytes(dir)
	if err != nil || free >= leastBytes {
		return err
	}
	name := filepath.Join(dir, reserveName)
	if info, err := os.Stat(name); err == nil {
		if err := os.Truncate(name, max(0, info.Size()-(leastBytes-free))); err != nil {
			return fmt.Errorf("free reserve: %w", err)
		}
		if free, err = freeBytes(dir); err != nil {
			return err
		}
	}
	if free < leastBytes/2 {
		return noSpace("use store", free, leastBytes)
	}
	return nil
}

// roomToMerge reports whether there is room to write all tables anew.
func roomToMerge(dir string) (bool, error) {
	free, err := freeBytes(dir)
	if err != nil {
		return false, err
	}
	tables, err := filepath.Glob(filepath.Join(dir, "index", "*.sst"))
	if err != nil {
		return false, err
	}
	need := int64(indexSlackBytes)
	for _, t := range tables {
		if info, err := os.Stat(t); err == nil {
			need += info.Size()
		}
	}
	return free >= need, nil
}

// keepReserve sets blocks aside for a full disk. On one that is full already a
// reserve that was used gets back what is left of it.
func keepReserve(dir string) error {
	name := filepath.Join(dir, reserveName)
	have := int64(0)
	if info, err := os.Stat(name); err == nil {
		have = info.Size()
	}
	if have >= reserveBytes {
		return nil
	}
	free, err := freeBytes(dir)
	if err != nil {
		return err
	}
	size := int64(reserveBytes)
	if free < 2*reserveBytes {
		size = min(size, have+free-1<<20)
	}
	if size <= have {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make reserve: %w", err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		// A file system that cannot do it goes without.
		return errors.Join(f.Close(), os.Remove(name))
	}
	return f.Close()
}

// allocated is what a file occupies; holes do not count.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
