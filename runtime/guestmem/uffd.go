package guestmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h.
const (
	uffdAPI          = 0xaa
	uffdioAPI        = 0xc018aa3f // _IOWR(0xaa, 0x3f, struct uffdio_api)
	uffdioRegister   = 0xc020aa00 // _IOWR(0xaa, 0x00, struct uffdio_register)
	uffdModeWP       = 1 << 1
	uffdWPAsync      = 1 << 15 // Linux 6.7
	uffdUserModeOnly = 1
)

type uffdioAPIArg struct{ api, features, ioctls uint64 }

type uffdioRegisterArg struct{ start, length, mode, ioctls uint64 }

// userfault is a userfaultfd of the VMM process, held by us too.
type userfault struct {
	fd     int // ours
	remote int // its number in the VMM process
}

func (u *userfault) close() error { return unix.Close(u.fd) }

// openUserfault takes descriptor number remote of the VMM process and checks
// that it is a userfaultfd.
func (m *Memory) openUserfault(remote int) (*userfault, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", m.target.PID, remote))
	if err != nil {
		return nil, fmt.Errorf("look at descriptor %d of process %d: %w", remote, m.target.PID, err)
	}
	if link != "anon_inode:[userfaultfd]" {
		return nil, fmt.Errorf("descriptor %d of process %d is %s, not a userfaultfd", remote, m.target.PID, link)
	}
	fd, err := unix.PidfdGetfd(m.pidfd, remote, 0)
	if err != nil {
		return nil, fmt.Errorf("take descriptor %d of process %d: %w", remote, m.target.PID, err)
	}
	return &userfault{fd: fd, remote: remote}, nil
}

// findUserfault looks for a userfaultfd that an earlier tracker left in the
// VMM process, so that a lost state does not cost a descriptor each time. The
// mark is the feature that no VMM uses by itself.
func (m *Memory) findUserfault() *userfault {
	dir := fmt.Sprintf("/proc/%d/fd", m.target.PID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if link, err := os.Readlink(dir + "/" + e.Name()); err != nil || link != "anon_inode:[userfaultfd]" {
			continue
		}
		info, err := os.ReadFile(dir + "info/" + e.Name())
		if err != nil || uffdFeatures(string(info))&uffdWPAsync == 0 {
			continue
		}
		remote, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if u, err := m.openUserfault(remote); err == nil {
			return u
		}
	}
	return nil
}

// uffdFeatures reads "API:	aa:FEATURES:…" (hexadecimal) from fdinfo.
func uffdFeatures(fdinfo string) uint64 {
	for line := range strings.Lines(fdinfo) {
		if rest, ok := strings.CutPrefix(line, "API:"); ok {
			parts := strings.Split(strings.TrimSpace(rest), ":")
			if len(parts) > 1 {
				n, _ := strconv.ParseUint(parts[1], 16, 64)
				return n
			}
		}
	}
	return 0
}

// enable asks for asynchronous write protection: a write to a protected page
// is let through by the kernel, which takes the protection off; nobody waits.
func (u *userfault) enable() error {
	arg := uffdioAPIArg{api: uffdAPI, features: uffdWPAsync}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(u.fd), uffdioAPI, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		return fmt.Errorf("enable asynchronous write protection: %w", errno)
	}
	return nil
}

// register covers the guest RAM. It protects nothing yet.
func (u *userfault) register(regions []region) error {
	for _, r := range regions {
		arg := uffdioRegisterArg{start: r.addr, length: r.bytes(), mode: uffdModeWP}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(u.fd), uffdioRegister, uintptr(unsafe.Pointer(&arg))); errno != 0 {
			return fmt.Errorf("register guest memory for write protection: %w", errno)
		}
	}
	return nil
}

// makeUserfault makes a userfaultfd in the VMM process.
func (m *Memory) makeUserfault(ctx context.Context) (*userfault, error) {
	remote, err := injectUserfaultfd(ctx, m.target.PID)
	if err != nil {
		return nil, fmt.Errorf("make userfaultfd in process %d: %w", m.target.PID, err)
	}
	u, err := m.openUserfault(remote)
	if err != nil {
		return nil, err
	}
	if err := u.enable(); err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}
