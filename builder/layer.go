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

// MakeLayer makes a new sparse file at path with an empty ext4 of sizeBytes:
// the writable disk of a sandbox. path must not exist. It does not need root.
//
// The guest finds nothing left to initialise, so an idle guest does not write;
// no blocks are reserved for root, and there is an inode for every 8 KiB.
func MakeLayer(ctx context.Context, path string, sizeBytes int64) (err error) {
	if sizeBytes < MinLayerBytes {
		return fmt.Errorf("make layer %s: %w: %d bytes are less than %d", path, ErrInvalidRequest, sizeBytes, MinLayerBytes)
	}
	sizeBytes &^= imageBlock - 1
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
	_, err = runTool(ctx, "mkfs.ext4", []string{"MKE2FS_CONFIG=" + conf},
		"-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-i", "8192",
		"-O", rootfsFeatures+",has_journal",
		"-J", "size="+strconv.FormatInt(journalMiB(sizeBytes), 10),
		"-L", "sietch-layer",
		"-E", "lazy_itable_init=0,lazy_journal_init=0,lazy_journal_init=1,root_owner=0:0",
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
