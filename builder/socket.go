package builder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A unix socket's path has 107 bytes at most, a data directory may be deeper.
// Both sides therefore go through a descriptor of the directory, whose path in
// /proc is short.

func throughProc(path string) (short string, done func(), err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", filepath.Dir(path), err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { unix.Close(fd) }, nil
}

// listenShort listens on a socket at path, replacing what is there. The socket
// is for the owner alone.
func listenShort(path string) (net.Listener, error) {
	if err := removeIfThere(path); err != nil {
		return nil, err
	}
	short, done, err := throughProc(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the short path is gone by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// dialShort connects to the socket at path.
func dialShort(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := throughProc(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}
