package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// namespace runs functions on a thread in a network namespace of its own, which
// ends with the thread, with the last socket and with the last process in it.
type namespace struct{ calls chan func() }

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	ns := &namespace{make(chan func())}
	ready := make(chan error)
	go func() {
		goruntime.LockOSThread() // for good: the thread ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range ns.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(ns.calls) })
	return ns
}

func (ns *namespace) run(f func() error) error {
	result := make(chan error, 1)
	ns.calls <- func() { result <- f() }
	return <-result
}

// makeTap makes the gateway's end of the guest's link.
func makeTap() (_ *os.File, err error) {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	fd := int(f.Fd())
	req, err := unix.NewIfreq("tap0")
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("create tap: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	mac, err := net.ParseMAC(proto.GatewayMAC)
	if err != nil {
		return nil, err
	}
	// struct ifreq with a sockaddr of ARPHRD_ETHER, which unix.Ifreq cannot hold.
	var hw struct {
		name   [unix.IFNAMSIZ]byte
		family uint16
		data   [22]byte
	}
	copy(hw.name[:], "tap0")
	hw.family = unix.ARPHRD_ETHER
	copy(hw.data[:], mac)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&hw))); errno != 0 {
		return nil, fmt.Errorf("set hardware address of tap: %w", errno)
	}
	addr := netip.MustParseAddr(proto.GatewayAddr).As4()
	mask := net.CIDRMask(proto.PrefixBits, 32)
	for _, step := range []struct {
		request uint
		set     func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(addr[:]) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }},
		{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		r, err := unix.NewIfreq("tap0")
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, step.request, r)
		}
		if err != nil {
			return nil, fmt.Errorf("configure tap: %w", err)
		}
	}
	return f, nil
}
