package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict is what the filter says to a call, by the kernel's rules: the words of
// seccomp_data, which the virtual machine of package bpf reads as a packet in
// network order.
func verdict(t *testing.T, machine *bpf.VM, audit, number uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data, number)
	binary.BigEndian.PutUint32(data[4:], audit)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a)) // the low word comes first
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	v, err := machine.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

func TestFilter(t *testing.T) {
	raw, err := filter([]string{"chroot"})
	if err != nil {
		t.Fatal(err)
	}
	instructions, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("the program has instructions that are none")
	}
	machine, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		i386   = unix.AUDIT_ARCH_I386
		amd64  = unix.AUDIT_ARCH_X86_64
		// what a C library starts a thread with
		thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
			unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	)
	for _, c := range []struct {
		what   string
		arch   uint32
		number uint32
		args   []uint64
		want   uint32
	}{
		{"read", amd64, unix.SYS_READ, nil, allow},
		{"execve", amd64, unix.SYS_EXECVE, nil, allow},
		{"ptrace", amd64, unix.SYS_PTRACE, nil, eperm},
		{"chroot, asked for", amd64, unix.SYS_CHROOT, nil, eperm},
		{"the last of the list", amd64, unix.SYS_VHANGUP, nil, eperm},
		{"getpid of i386", i386, 20, nil, eperm},
		{"ptrace of i386", i386, 26, nil, eperm},
		{"read of x32", amd64, 0x40000000, nil, enosys},
		{"ptrace of x32", amd64, 0x40000000 + 521, nil, enosys},
		{"a thread", amd64, unix.SYS_CLONE, []uint64{thread}, allow},
		{"a process", amd64, unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, allow},
		{"a user namespace", amd64, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, eperm},
		{"a network namespace", amd64, unix.SYS_CLONE, []uint64{unix.CLONE_NEWNET}, eperm},
		{"a mount namespace", amd64, unix.SYS_CLONE, []uint64{unix.CLONE_NEWNS | thread}, eperm},
		{"clone3", amd64, unix.SYS_CLONE3, nil, enosys},
		{"a unix socket", amd64, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allow},
		{"an IP socket", amd64, unix.SYS_SOCKET, []uint64{unix.AF_INET}, allow},
		{"an IPv6 socket", amd64, unix.SYS_SOCKET, []uint64{unix.AF_INET6}, allow},
		{"a netlink socket", amd64, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, eperm},
		{"a vsock", amd64, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, eperm},
		{"a socket of the kernel's ciphers", amd64, unix.SYS_SOCKET, []uint64{unix.AF_ALG}, eperm},
		{"KVM_RUN", amd64, unix.SYS_IOCTL, []uint64{3, 0xae80}, allow},
		{"TIOCSTI", amd64, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
	} {
		if got := verdict(t, machine, c.arch, c.number, c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.what, got, c.want)
		}
	}
}

func TestUnknownCallIsRefused(t *testing.T) {
	if _, err := filter([]string{"no_such_call"}); err == nil || !strings.Contains(err.Error(), "no_such_call") {
		t.Errorf("got %v", err)
	}
}

// The test binary takes the part of the VMM once more: it makes every denied
// call, with arguments that none of them accepts.
func init() {
	if len(os.Args) == 2 && os.Args[1] == "call" {
		info, err := arch.GetInfo("")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for _, name := range append([]string{"chroot", "getpid"}, denied...) {
			wrong := ^uintptr(0)
			_, _, errno := unix.Syscall6(uintptr(info.SyscallNames[name]), wrong, wrong, wrong, wrong, wrong, wrong)
			fmt.Println(name, map[bool]string{true: "denied", false: "done"}[errno == unix.EPERM])
		}
		// A thread and a child are still to be had.
		if err := exec.Command("/proc/self/exe", "-test.run=^$").Run(); err != nil {
			fmt.Println("child", err)
		}
		os.Exit(0)
	}
}

func TestDeniedCalls(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	got := said(t, Command{Cmd: exec.Command(self, "call"), RunDir: dir, Log: filepath.Join(dir, "log"), Jail: &Jail{
		Files: Files{Run: []string{"/"}, Write: []string{"/dev/null"}}, Deny: []string{"chroot"}}})
	want := "chroot denied\ngetpid done\n"
	for _, name := range denied {
		want += name + " denied\n"
	}
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	// Nothing of it stays here.
	if err := unix.Unshare(0); err != nil {
		t.Error(err)
	}
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}
