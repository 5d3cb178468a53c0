package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder/ext4"
)

// rootfsFormat is raised when the same tree gives other bytes than before.
const rootfsFormat = 1

// rootfsFile is the name of the image in its directory.
const rootfsFile = "rootfs.ext4"

// rootfsOptions are the same for every image: nothing mounts one by its UUID,
// and it seeds the checksums, which must not vary.
var rootfsOptions = ext4.Options{
	UUID:  [16]byte{0x5e, 0xf5, 0xe9, 0xe0, 0x73, 0xa7, 0x4d, 0x0b, 0x9c, 0x14, 0x6d, 0x6b, 0x3f, 0x2e, 0x8a, 0x51},
	Label: "sietch-image",
	Time:  epoch,
}

var epoch = time.Unix(0, 0)

// rootfsInfo is what is known of a finished rootfs.ext4.
type rootfsInfo struct {
	// Format is rootfsFormat of the program that made it.
	Format int    `json:"format"`
	Digest string `json:"digest"`
	// ContentBytes is Image.SizeBytes.
	ContentBytes int64 `json:"content_bytes"`
	Inodes       int64 `json:"inodes"`
}

// makeRootfs writes the tree at dir, mounted read-only, as an ext4 image to the
// new file target, which ends up with mode 0444, synced. Equal trees give equal
// images, here and on any other host.
//
// The time of the root directory is that of the newest thing in it: its own is
// that of the moment somebody unpacked the image, as archives do not carry it.
func makeRootfs(ctx context.Context, dir, target string) (_ rootfsInfo, err error) {
	f, err := os.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			err = errors.Join(noteSpace(filepath.Dir(target), fmt.Errorf("make ext4 image: %w", err)), removeIfThere(target))
		}
	}()
	o := rootfsOptions
	if o.RootTime, err = newestEntry(dir); err != nil {
		return rootfsInfo{}, err
	}
	stats, err := ext4.Create(ctx, f, dir, o)
	if err != nil {
		return rootfsInfo{}, err
	}
	if err := f.Chmod(0o444); err != nil {
		return rootfsInfo{}, err
	}
	// The disk works while the hash is computed.
	synced := make(chan error, 1)
	go func() { synced <- f.Sync() }()
	digest, err := digestSparse(ctx, f)
	if err := errors.Join(<-synced, err); err != nil {
		return rootfsInfo{}, err
	}
	return rootfsInfo{Format: rootfsFormat, Digest: digest, ContentBytes: stats.ContentBytes, Inodes: stats.Inodes}, nil
}

// newestEntry is the latest time of modification of what is in dir itself.
func newestEntry(dir string) (time.Time, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return time.Time{}, err
	}
	newest := epoch
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err != nil {
			return time.Time{}, &os.PathError{Op: "lstat", Path: e.Name(), Err: err}
		}
		if t := timeOf(st.Mtim); t.After(newest) {
			newest = t
		}
	}
	return newest, nil
}

func timeOf(t unix.Timespec) time.Time { return time.Unix(t.Unix()) }

// noteSpace adds to a failure that the disk is full, when it is: not every
// failure for want of space says so.
func noteSpace(dir string, err error) error {
	if !isNoSpace(err) {
		if free, ferr := freeBytes(dir); ferr != nil || free >= 1<<20 {
			return err
		}
	}
	return newDetailError(kindNoSpace, "free space on the file system of "+dir, err, "no space left on the file system of %s: %v", dir, err)
}

// isNoSpace says whether an error comes from a full disk.
func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
