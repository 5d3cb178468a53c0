package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder/ext4"
)

// rootfsFormat is raised when the same directory would give other bytes.
const rootfsFormat = 1

// rootfsFile is the name of the image in its directory.
const rootfsFile = "rootfs.ext4"

// rootfsUUID is the same in every image: nothing mounts them by it, and it
// seeds the directory hashes and the checksums, which must not vary.
const rootfsUUID = "5ef5e9e0-73a7-4d0b-9c14-6d6b3f2e8a51"

// rootfsFeatures are spelled out so that an image does not depend on the
// defaults of the host's mke2fs.conf. There is no journal: nobody writes to it.
const rootfsFeatures = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// makeRootfs writes the tree at dir, mounted read-only, as an ext4 image to the
// new file target, which ends up with mode 0444, synced. The same tree gives the
// same bytes: what mkfs.ext4 takes from elsewhere (clock, random numbers, its
// configuration) is fixed, and the times of access and change, which are not
// part of the tree, are replaced by those of modification.
//
// The order in which the host's file system lists directories is part of the
// tree in this sense: another host may give another, equally good image.
func makeRootfs(ctx context.Context, dir, target string) (_ rootfsInfo, err error) {
	tree, err := measure(ctx, dir)
	if err != nil {
		return rootfsInfo{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(target))
		}
	}()
	size := tree.imageBytes()
	// The estimate is generous. Should a tree still not fit, more is tried, at
	// the cost of time; a sparse file takes no more space for it.
	for attempt := 0; ; attempt++ {
		err = mkfsFrom(ctx, dir, target, size, tree.inodes)
		if err == nil {
			break
		}
		if attempt == 3 || !errors.Is(err, errImageTooSmall) {
			return rootfsInfo{}, fmt.Errorf("make ext4 image of %d files with %d bytes: %w", tree.inodes, tree.contentBytes, err)
		}
		size *= 2
	}
	if _, err := os.Lstat(filepath.Join(dir, "lost+found")); errors.Is(err, os.ErrNotExist) {
		// mkfs.ext4 makes it always; the image is to be like the tree. debugfs
		// fails silently, which the comparison below would notice.
		if _, err := runTool(ctx, "debugfs", mkfsClock, "-w", "-R", "rmdir lost+found", target); err != nil {
			return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
		}
	}
	f, err := os.OpenFile(target, os.O_RDWR, 0)
	if err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	defer f.Close()
	if err := fixRootfs(ctx, f, dir, tree); err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	if err := f.Chmod(0o444); err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	if err := f.Sync(); err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	digest, err := digestSparse(ctx, f)
	if err != nil {
		return rootfsInfo{}, fmt.Errorf("make ext4 image: %w", err)
	}
	return rootfsInfo{Format: rootfsFormat, Digest: digest, ContentBytes: tree.contentBytes, Inodes: tree.inodes}, nil
}

// mkfsClock stops the clock of the tools of e2fsprogs.
var mkfsClock = []string{"E2FSPROGS_FAKE_TIME=1"}

var errImageTooSmall = errors.New("the file system is too small for its content")

// mkfsFrom makes target of size bytes with the content of dir.
func mkfsFrom(ctx context.Context, dir, target string, size, inodes int64) error {
	if err := removeIfThere(target); err != nil {
		return err
	}
	// In a new, wholly sparse file mkfs.ext4 has nothing to clear and knows it,
	// as long as it is left to discard first.
	if err := createSparse(target, size, 0o600); err != nil {
		return err
	}
	conf, err := emptyConfig(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer os.Remove(conf)
	out, err := runTool(ctx, "mkfs.ext4",
		append([]string{"MKE2FS_CONFIG=" + conf}, mkfsClock...),
		"-q", "-F", "-b", "4096", "-I", "256", "-m", "0",
		"-O", rootfsFeatures,
		"-N", strconv.FormatInt(inodes+spareInodes, 10),
		"-U", rootfsUUID, "-L", "sietch-image",
		"-E", "hash_seed="+rootfsUUID+",root_owner=0:0,lazy_journal_init=1",
		"-d", dir, target)
	if err == nil {
		return nil
	}
	// mkfs has one exit code for everything; its words are all there is.
	if strings.Contains(out, "Could not allocate") || strings.Contains(out, "No free space") {
		if free, ferr := freeBytes(filepath.Dir(target)); ferr == nil && free > 1<<20 {
			return fmt.Errorf("%w: %w", errImageTooSmall, err)
		}
	}
	return noteSpace(filepath.Dir(target), err)
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

// fixRootfs gives every inode of the image the exact times of its source, which
// mkfs.ext4 cuts to seconds and to 32 bits, and on the way holds each against
// its source: an image that lost something is an error here, not a riddle later.
//
// The root directory, which mkfs.ext4 makes by itself, gets the mode and owner
// of its source. Its time is that of the newest thing in it: its own is that of
// the moment somebody unpacked the image, as archives do not carry it.
func fixRootfs(ctx context.Context, f *os.File, dir string, tree treeSize) error {
	fs, err := ext4.Open(f)
	if err != nil {
		return err
	}
	newest, err := newestEntry(dir)
	if err != nil {
		return err
	}
	return fs.Walk(func(p string, i *ext4.Inode) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, p), &st); err != nil {
			return fmt.Errorf("compare %s: %w", p, err)
		}
		a := ext4.Attr{Perm: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: timeOf(st.Mtim), Birth: epoch}
		if p == "/" {
			a.Mtime = newest
			return fs.SetAttr(i.Number, a)
		}
		if err := sameInode(i, &st); err != nil {
			return fmt.Errorf("mkfs.ext4 changed %s: %w", p, err)
		}
		if err := sameXattrs(fs, i, tree.xattrs[p]); err != nil {
			return fmt.Errorf("mkfs.ext4 changed %s: %w", p, err)
		}
		return fs.SetAttr(i.Number, a)
	})
}

// sameXattrs compares the attributes of an inode with those of its source.
func sameXattrs(fs *ext4.FS, i *ext4.Inode, want map[string]string) error {
	if len(want) == 0 {
		return nil
	}
	have, err := fs.Xattrs(i)
	if err != nil {
		return err
	}
	for name, value := range want {
		if got, ok := have[name]; !ok || string(got) != value {
			return fmt.Errorf("attribute %s is %q, want %q", name, got, value)
		}
	}
	return nil
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
			return time.Time{}, err
		}
		if t := timeOf(st.Mtim); t.After(newest) {
			newest = t
		}
	}
	return newest, nil
}

func sameInode(i *ext4.Inode, st *unix.Stat_t) error {
	kind := st.Mode & unix.S_IFMT
	switch {
	case i.Mode != st.Mode:
		return fmt.Errorf("mode %o, want %o", i.Mode, st.Mode)
	case i.UID != st.Uid || i.GID != st.Gid:
		return fmt.Errorf("owner %d:%d, want %d:%d", i.UID, i.GID, st.Uid, st.Gid)
	case (kind == unix.S_IFREG || kind == unix.S_IFLNK) && i.Size != st.Size:
		return fmt.Errorf("%d bytes, want %d", i.Size, st.Size)
	case (kind == unix.S_IFBLK || kind == unix.S_IFCHR) && i.Rdev != st.Rdev:
		return fmt.Errorf("device %#x, want %#x", i.Rdev, st.Rdev)
	}
	return nil
}

// noteSpace adds to a failure that the disk is full, when it is: mkfs.ext4 does
// not always say so.
func noteSpace(dir string, err error) error {
	if !isNoSpace(err) {
		if free, ferr := freeBytes(dir); ferr != nil || free >= 1<<20 {
			return err
		}
	}
	return newDetailError(kindNoSpace, "free space on the file system of "+dir, err, "no space left on the file system of %s: %v", dir, err)
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// toolPackages says which Debian package brings a tool.
var toolPackages = map[string]string{
	"mkfs.ext4":  "e2fsprogs",
	"debugfs":    "e2fsprogs",
	"runc":       "runc",
	"mmdebstrap": "mmdebstrap",
}

// findTool looks a program up, also where ordinary users' PATH does not.
func findTool(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	hint := "apt-get install " + toolPackages[name]
	return "", newDetailError(kindMissingTool, hint, nil, "find %s: it is not installed", name)
}

// runTool runs a program in the C locale and returns what it printed, which is
// also part of the error.
func runTool(ctx context.Context, name string, env []string, args ...string) (string, error) {
	path, err := findTool(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), append([]string{"LC_ALL=C"}, env...)...)
	b, err := cmd.CombinedOutput()
	out := strings.TrimSpace(string(b))
	if err != nil {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		if out == "" {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		return out, fmt.Errorf("%s: %w: %s", name, err, lastLines(out, 5))
	}
	return out, nil
}
