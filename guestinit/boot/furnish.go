package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const secure = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// furnish mounts and makes what programs expect of a running system. An image
// that makes one of them impossible still runs, with a remark.
func (s *System) furnish() {
	for _, m := range []struct {
		kind, at string
		flags    uintptr
		options  string
	}{
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5"},
		{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", "/dev/mqueue", secure, ""},
		{"cgroup2", "/sys/fs/cgroup", secure, "nsdelegate,memory_recursiveprot"},
	} {
		s.remark(mountAt(m.kind, m.at, m.flags, m.options))
	}
	if s.Config.Init {
		// An init system expects its run-time directory to start empty; it keeps
		// what it finds mounted. Elsewhere /run is the image's, which may hold
		// directories that its programs do not create.
		s.remark(makeMountPoint("/run"))
		s.remark(mountAt("tmpfs", "/run", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"))
		s.remark(s.tellInit())
	}

	for _, l := range [][2]string{
		{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"},
		{"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"},
	} {
		if err := os.Symlink(l[0], l[1]); err != nil && !errors.Is(err, fs.ErrExist) {
			s.remark(err)
		}
	}
	// Opening one of these makes the kernel ask for the module (see Modprobe).
	s.remark(os.MkdirAll("/dev/net", 0o755))
	for _, n := range []struct {
		path         string
		perm         uint32
		major, minor uint32
	}{
		{"/dev/net/tun", 0o666, 10, 200},
		{"/dev/fuse", 0o666, 10, 229},
		{"/dev/loop-control", 0o600, 10, 237},
	} {
		err := unix.Mknod(n.path, unix.S_IFCHR|n.perm, int(unix.Mkdev(n.major, n.minor)))
		if err == nil {
			err = unix.Chmod(n.path, n.perm)
		}
		if err != nil && err != unix.EEXIST {
			s.remark(fmt.Errorf("create %s: %w", n.path, err))
		}
	}

	for file, value := range map[string]string{
		"/proc/sys/kernel/modprobe": StateDir + "/" + stateModprobe,
		// As container engines set them: the machine is the boundary, not its root.
		"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
		"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
	} {
		s.remark(os.WriteFile(file, []byte(value), 0))
	}
	// The kernel's own limit on open files, 4096, is one that servers hit.
	// syscall's function, not unix's: package os restores a limit it remembers
	// in children otherwise.
	s.remark(syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 65536, Max: 1 << 20}))
}

func mountAt(kind, at string, flags uintptr, options string) error {
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	if err := unix.Mount(kind, at, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}
