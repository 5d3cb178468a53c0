package vmmtest

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace makes a network namespace with a tap, for as long as the test runs,
// and returns its path. It needs root.
func Namespace(t testing.TB, tap string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A thread with a namespace of its own, which the mount keeps.
	done := make(chan error, 1)
	go func() { done <- makeNamespace(path, tap) }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

func makeNamespace(path, tap string) error {
	goruntime.LockOSThread() // and never unlocked: the thread is of no further use
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep network namespace: %w", err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(tap)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make tap: %w", err)
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}
