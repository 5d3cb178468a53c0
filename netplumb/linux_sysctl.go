package netplumb

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ifaceSysctl is the file of an interface setting such as "ipv4/forwarding",
// in the network namespace of the thread that opens it.
func ifaceSysctl(name, iface string) string {
	family, key, _ := strings.Cut(name, "/")
	return filepath.Join("/proc/sys/net", family, "conf", iface, key)
}

// Settings are read and written by plain system calls: package os tries to
// register each file with its poller, which takes longer than the rest.

func readSysctl(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return "", &os.PathError{Op: "read", Path: file, Err: err}
	}
	return strings.TrimSpace(string(b[:n])), nil
}

func writeSysctl(file, value string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}
