package cloudhypervisor

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// cloud-hypervisor can give up neither its user nor its root directory, and it
// opens files by path whenever it is told to. So a jailed one is born where it
// has nothing to give up: as its user, without capabilities, in a mount namespace
// that holds its own files under the paths they have outside, and nothing else.
// Files it may not open by their mode are put there by id-mapped mounts, in
// which their owner is the jail's user (mount_setattr(2), Linux 5.12). Nothing
// of it is left when the process ends.

// jail is what a process is to see.
type jail struct {
	vmm.Jail
	root    string // where it is built; empty outside
	entries []entry
}

// entry is one file or directory of a jail.
type entry struct {
	path string
	kind entryKind
}

type entryKind int

const (
	readFile  entryKind = iota // read by the jail's user, whoever may read it outside
	writeFile                  // likewise read and written
	runFile                    // a program
	ownedDir                   // a directory that is the user's own already
	publicDir                  // a directory for everybody, read-only
)

// makeJail lists what the machine of s needs to see.
func makeJail(s vmm.Spec, binary string, c *console) (*jail, error) {
	j := &jail{Jail: *s.Jail, root: filepath.Join(s.RunDir, "root")}
	if err := j.addProgram(binary); err != nil {
		return nil, err
	}
	j.add(ownDir(s.RunDir), ownedDir)
	j.add(s.MemoryFile, readFile)
	if s.Restore == nil {
		j.add(s.Kernel, readFile)
		if s.Initramfs != "" {
			j.add(s.Initramfs, readFile)
		}
	}
	for _, d := range s.Disks {
		if d.ReadOnly {
			j.add(d.Path, readFile)
		} else {
			j.add(d.Path, writeFile)
		}
	}
	j.add(c.file, writeFile)
	return j, os.MkdirAll(j.root, 0o700)
}

// add puts a file into the jail, once; who writes it decides.
func (j *jail) add(path string, kind entryKind) {
	path = filepath.Clean(path)
	i := slices.IndexFunc(j.entries, func(e entry) bool { return e.path == path })
	if i < 0 {
		j.entries = append(j.entries, entry{path, kind})
	} else if kind == writeFile {
		j.entries[i].kind = kind
	}
}

// addProgram adds a program and, when it is not static as the released one is,
// the host's libraries.
func (j *jail) addProgram(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		for _, dir := range []string{"/usr/lib", "/usr/lib64", "/lib", "/lib64"} {
			if _, err := os.Lstat(dir); err == nil {
				j.add(dir, publicDir)
			}
		}
		if _, err := os.Stat("/etc/ld.so.cache"); err == nil {
			j.add("/etc/ld.so.cache", readFile)
		}
	}
	j.add(path, runFile)
	return nil
}

// devices a machine needs, with their numbers.
var devices = []struct {
	name         string
	major, minor uint32
}{{"kvm", 10, 232}, {"urandom", 1, 9}, {"null", 1, 3}}

// credential is the user a VMM is born as.
func (j *jail) credential() *syscall.Credential {
	return &syscall.Credential{Uid: uint32(j.UID), Gid: uint32(j.GID), Groups: []uint32{}}
}

// files are the rights of each entry once more, for a kernel with Landlock: then
// they hold for whatever else a mount namespace could come to show.
func (j *jail) files() process.Files {
	f := process.Files{Control: []string{"/dev/kvm"}, Read: []string{"/dev/urandom"}, Write: []string{"/dev/null"}}
	for _, e := range j.entries {
		switch e.kind {
		case readFile:
			f.Read = append(f.Read, e.path)
		case writeFile:
			f.Write = append(f.Write, e.path)
		case runFile, publicDir:
			f.Run = append(f.Run, e.path)
		case ownedDir:
			f.Make = append(f.Make, e.path)
		}
	}
	return f
}

// enter makes the jail and takes the calling thread into it, for good.
func (j *jail) enter() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make jail: %w", err)
		}
	}()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	// A mount namespace of its own brings a mask of its own, so this is about
	// this thread: what is made here is for another user to walk through.
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	maps := idMaps{user: j.Jail}
	defer maps.close()
	mounts := make([]int, 0, len(j.entries))
	defer func() {
		for _, fd := range mounts {
			unix.Close(fd)
		}
	}()
	// All of them before the first is put in place: a path may lead over another.
	for _, e := range j.entries {
		fd, err := e.open(&maps)
		if err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
		mounts = append(mounts, fd)
	}
	if err := unix.Mount("jail", j.root, "tmpfs", unix.MS_NOSUID, "mode=0755,size=1m,nr_inodes=1k"); err != nil {
		return fmt.Errorf("mount %s: %w", j.root, err)
	}
	for i, e := range j.entries {
		if err := e.put(mounts[i], j.root); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
	}
	if err := j.makeDevices(); err != nil {
		return err
	}
	if err := changeRoot(j.root); err != nil {
		return fmt.Errorf("change root directory: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_RDONLY|unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("make root directory read-only: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	return dropPrivileges()
}

// changeRoot makes a mount the root directory of the thread and takes the old
// one out of its sight.
func changeRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	err := unix.PivotRoot(".", ".")
	if err == nil {
		// The old root is now mounted over the new one.
		return unix.Unmount(".", unix.MNT_DETACH)
	}
	if err != unix.EINVAL {
		return err
	}
	// A host that runs from its initramfs cannot put that away: it is covered,
	// which nobody without capabilities can undo.
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	return unix.Chroot(".")
}

// dropPrivileges leaves the thread what it needs to become another user, and
// nothing to its programs.
func dropPrivileges() error {
	for c := 0; ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err == unix.EINVAL {
			break // past the last
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("deny new privileges: %w", err)
	}
	unix.Umask(0o077)
	return nil
}

func (j *jail) makeDevices() error {
	dir := filepath.Join(j.root, "dev")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range devices {
		path := filepath.Join(dir, d.name)
		err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(d.major, d.minor)))
		if err == nil {
			err = os.Chown(path, j.UID, j.GID)
		}
		if err != nil {
			return fmt.Errorf("make /dev/%s: %w", d.name, err)
		}
	}
	return nil
}

// open makes a mount of an entry that is nowhere yet.
func (e entry) open(maps *idMaps) (_ int, err error) {
	if e.kind == publicDir {
		if st, err := os.Lstat(e.path); err == nil && st.Mode()&os.ModeSymlink != 0 {
			return -1, nil // as it is
		}
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, e.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("copy mount: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if e.kind != runFile && e.kind != publicDir {
		attr.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	if e.kind != writeFile && e.kind != ownedDir {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, fmt.Errorf("restrict mount: %w", err)
	}
	if e.kind == readFile || e.kind == writeFile || e.kind == runFile {
		return fd, e.mapOwner(fd, maps)
	}
	return fd, nil
}

// mapOwner makes the jail's user the owner of the file in the mount.
func (e entry) mapOwner(fd int, maps *idMaps) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	ns, err := maps.of(st.Uid, st.Gid)
	if err != nil {
		return fmt.Errorf("make id map: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	if err == nil || maps.allowed(st, e.kind) {
		return nil
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return fmt.Errorf("map owner: %w", err)
	}
	return fmt.Errorf("map owner: %w (its file system, type %#x, has no id-mapped mounts on this kernel, and its mode denies user %d; "+
		"ext4, xfs and btrfs have them)", err, fs.Type, maps.user.UID)
}

// put puts the mount in place.
func (e entry) put(fd int, root string) error {
	target := filepath.Join(root, e.path)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if fd < 0 {
		to, err := os.Readlink(e.path)
		if err != nil {
			return err
		}
		return os.Symlink(to, target)
	}
	switch _, err := os.Lstat(target); {
	case err == nil: // inside a directory that was put before
	case e.kind == ownedDir || e.kind == publicDir:
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
	default:
		f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		f.Close()
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("put mount in place: %w", err)
	}
	return nil
}
