package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// MinLayerBytes is the smallest layer that leaves room for anything.
const MinLayerBytes = 16 << 20

// layerFeatures are spelled out so that a layer does not depend on the defaults
// of the host's mke2fs.conf, and that every guest kernel can mount it.
const layerFeatures = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// MakeLayer makes a new sparse file at path with an empty ext4 of sizeBytes:
// the writable disk of a sandbox. path must not exist. It does not need root.
//
// The guest finds nothing left to initialise, so an idle guest does not write;
// no blocks are reserved for root, and there is an inode for every 8 KiB.
func MakeLayer(ctx context.Context, path string, sizeBytes int64) (err error) {
	if sizeBytes < MinLayerBytes {
		return fmt.Errorf("make layer %s: %w: %d bytes are less than %d", path, ErrInvalidRequest, sizeBytes, MinLayerBytes)
	}
	sizeBytes &^= 4096 - 1
	if err := createSparse(path, sizeBytes, 0o600); err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(path))
		}
	}()
	conf, err := emptyConfig(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	defer os.Remove(conf)
	err = runTool(ctx, "mkfs.ext4", []string{"MKE2FS_CONFIG=" + conf},
		"-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-i", "8192",
		"-O", layerFeatures,
		"-J", "size="+strconv.FormatInt(journalMiB(sizeBytes), 10),
		"-L", "sietch-layer",
		// In a new, wholly sparse file mkfs.ext4 has nothing to clear and knows
		// it, as long as it is left to discard first.
		"-E", "lazy_journal_init=1,root_owner=0:0",
		path)
	if err != nil {
		return fmt.Errorf("make layer %s: %w", path, noteSpace(filepath.Dir(path), err))
	}
	return nil
}

// journalMiB is small: a commit copies what the journal holds, and a guest that
// syncs much is not helped by a large one on a disk that is a file.
func journalMiB(sizeBytes int64) int64 {
	switch {
	case sizeBytes < 64<<20:
		return 4
	case sizeBytes < 1<<30:
		return 8
	}
	return 32
}

// createSparse makes a new file of size bytes that takes no space.
func createSparse(path string, size int64, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("create image file: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("create image file: %w", err), os.Remove(path))
	}
	return nil
}

// emptyConfig makes a configuration for mkfs.ext4 that says nothing.
func emptyConfig(dir string) (string, error) {
	f, err := os.CreateTemp(dir, "mke2fs-*.conf")
	if err != nil {
		return "", fmt.Errorf("write mke2fs configuration: %w", err)
	}
	_, err = f.WriteString("[defaults]\n\tenable_periodic_fsck = 0\n[fs_types]\n\text4 = {\n\t}\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write mke2fs configuration: %w", err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}
