package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mount points in the initramfs. No path leads there once the machine's root
// is over it.
const (
	imageDir = "/image"
	layerDir = "/layer"
	rootDir  = "/root"
)

// mountRoot mounts image and layer, and the overlay of both at rootDir.
func (s *System) mountRoot(d disks) error {
	for _, dir := range []string{imageDir, layerDir, rootDir} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create mount point: %w", err)
		}
	}
	for _, name := range []string{"ext4", "overlay"} {
		if s.Modules.Has(name) {
			if err := s.Modules.Load(name); err != nil {
				return err
			}
		}
	}
	if err := unix.Mount(d.image, imageDir, "ext4", unix.MS_RDONLY|unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount image %s: %w", d.image, err)
	}
	// What the guest deletes is given back to the host, and nothing is written
	// on behalf of nobody: both would be in the next commit.
	if err := unix.Mount(d.layer, layerDir, "ext4", unix.MS_NOATIME, "discard,noinit_itable"); err != nil {
		return fmt.Errorf("mount layer %s: %w", d.layer, err)
	}
	if err := prepareLayer(imageDir, layerDir); err != nil {
		return err
	}
	layer, err := os.Open(layerDir)
	if err != nil {
		return fmt.Errorf("open layer: %w", err)
	}
	s.Layer = layer
	// What kernels differ in is said: the host reads the upper directory, so
	// renamed directories and changed modes must be plain there.
	options := "lowerdir=" + imageDir + ",upperdir=" + layerDir + "/upper,workdir=" + layerDir + "/work" +
		",redirect_dir=off,metacopy=off,index=off"
	if err := unix.Mount("overlay", rootDir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	return nil
}

// prepareLayer makes a fresh layer's two directories. The upper one stands for
// "/" and so gets the mode and owner of the image's.
func prepareLayer(image, layer string) error {
	upper := filepath.Join(layer, "upper")
	err := os.Mkdir(upper, 0o755)
	if err == nil {
		fi, err := os.Stat(image)
		if err != nil {
			return fmt.Errorf("prepare layer: %w", err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		if err := errors.Join(os.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777)); err != nil {
			return fmt.Errorf("prepare layer: %w", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("prepare layer: %w", err)
	}
	if err := os.Mkdir(filepath.Join(layer, "work"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("prepare layer: %w", err)
	}
	return nil
}

// enterRoot moves to the machine's root and gives back the memory of what only
// booting needed. What is left of the initramfs is this program, which runs
// from it, and the modules the machine may still ask for.
func (s *System) enterRoot() error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := makeMountPoint(rootDir + dir); err != nil {
			return fmt.Errorf("enter root: %w", err)
		}
		if err := unix.Mount(dir, rootDir+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	// Now, because the initramfs is still in reach by path.
	if err := makeState(rootDir+StateDir, s.Config.Init); err != nil {
		return fmt.Errorf("create %s: %w", StateDir, err)
	}
	s.remark(os.RemoveAll(filepath.Dir(configFile)))
	if err := unix.Chdir(rootDir); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return os.Chdir("/")
}

// makeMountPoint makes sure that dir is a directory, not a link to one: an
// image may not lead us elsewhere.
func makeMountPoint(dir string) error {
	fi, err := os.Lstat(dir)
	if err == nil && fi.IsDir() {
		return nil
	}
	if err == nil {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	return os.MkdirAll(dir, 0o755)
}
