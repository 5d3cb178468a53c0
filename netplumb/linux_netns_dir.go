package netplumb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Everybody who keeps namespaces in /run/netns expects it to be a shared mount
// of its own, and whoever comes first binds the directory to itself. Then
// unmounting a namespace here unmounts it in every mount namespace that has a
// copy, where it would be kept alive otherwise. Coming later is no option: the
// bind would cover namespaces that are there already, and those could not be
// removed any more.

// netnsMark says that the mount is ours to remove.
var netnsMark = filepath.Join(filepath.Dir(lockPath), "netns-mount")

// shareNetnsDir makes the mount unless it is there.
func (k *linux) shareNetnsDir(ctx context.Context) error {
	if shared, err := isMount(netnsDir); shared || err != nil {
		return err
	}
	release, err := k.lock.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	if shared, err := isMount(netnsDir); shared || err != nil {
		return err
	}
	if err := os.WriteFile(netnsMark, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return errors.Join(fmt.Errorf("bind %s to itself: %w", netnsDir, err), os.Remove(netnsMark))
	}
	if err := unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mount %s: %w", netnsDir, err)
	}
	return nil
}

// tidy removes the mount if it is ours and nobody has a namespace there. Whoever
// makes one creates the file first and looks for the mount second.
func (k *linux) tidy(ctx context.Context) error {
	idle := func() (bool, error) {
		if _, err := os.Stat(netnsMark); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		files, err := os.ReadDir(netnsDir)
		return len(files) == 0, err
	}
	if ok, err := idle(); !ok || err != nil {
		return err
	}
	release, err := k.lock.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	if ok, err := idle(); !ok || err != nil {
		return err
	}
	err = unix.Unmount(netnsDir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		return nil // somebody is in the directory; the next one tries again
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is gone
		return fmt.Errorf("unmount %s: %w", netnsDir, err)
	}
	return os.Remove(netnsMark)
}

func isMount(dir string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
