package process

import (
	"fmt"
	"os"
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// InNetNS runs f on an OS thread that is in the network namespace at path; an
// empty path means the caller's. Processes f starts are in it too.
func InNetNS(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return OnOwnThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

// OnOwnThread runs f on an OS thread that ends with it, so that f may change
// what belongs to a thread: namespaces, root directory, bounding set. Processes
// f starts inherit it.
func OnOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread is what the process looks like from outside, and it
			// does not end with its goroutine: held here, it is not what f gets.
			err := OnOwnThread(f)
			goruntime.UnlockOSThread()
			done <- err
			return
		}
		// Never unlocked: the thread ends with the goroutine and takes along what
		// was changed.
		done <- f()
	}()
	return <-done
}

// OpenTap attaches to an existing tap of the network namespace at path; an empty
// path means the caller's. A VMM that is given the descriptor needs neither
// /dev/net/tun nor any capability.
func OpenTap(path, name string) (tap *os.File, err error) {
	err = InNetNS(path, func() (err error) {
		tap, err = openTap(name)
		return err
	})
	return tap, err
}

func openTap(name string) (_ *os.File, err error) {
	// Attaching to a name that does not exist would make a new tap.
	if err := linkExists(name); err != nil {
		return nil, fmt.Errorf("find tap %s: %w", name, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	// The tap's maker decided whether it has several queues; one is used.
	for _, queues := range []uint16{0, unix.IFF_MULTI_QUEUE} {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | queues)
		if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != unix.EINVAL {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("attach to tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func linkExists(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	return unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, req)
}
