package process

import (
	"fmt"
	"runtime"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// denied are system calls that no VMM needs once it is started, and that a
// taken-over one could use against the kernel or against other processes. It is
// a second wall: QEMU's own filter lacks most of them, and cloud-hypervisor's
// are those of its threads, of which the first has none.
var denied = []string{
	// other processes
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_getfd",
	// mounts and namespaces
	"mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
	"unshare", "setns",
	// files past their paths
	"open_by_handle_at", "name_to_handle_at",
	// the kernel itself
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf", "perf_event_open",
	"add_key", "request_key", "keyctl", "syslog", "iopl", "ioperm", "modify_ldt", "personality", "lookup_dcookie",
	// the host as a whole
	"reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "sethostname", "setdomainname",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "vhangup",
}

// newNamespaces are the flags with which clone(2) makes namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// filter is the program for the kernel. Calls of another architecture, which on
// x86-64 every process can make, would have other numbers: none is allowed.
func filter(more []string) ([]bpf.RawInstruction, error) {
	conditions := []seccomp.NameWithConditions{
		// Sockets of a VMM are unix sockets; taps are configured through IP ones.
		{Name: "socket", Conditions: seccomp.ArgumentConditions{
			{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_UNIX},
			{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_INET},
			{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_INET6},
		}},
		// Input pushed into a terminal would be read by whoever uses it next.
		{Name: "ioctl", Conditions: seccomp.ArgumentConditions{{Argument: 1, Operation: seccomp.Equal, Value: unix.TIOCSTI}}},
	}
	for flag := uint64(1); flag <= newNamespaces; flag <<= 1 {
		if flag&newNamespaces != 0 {
			conditions = append(conditions, seccomp.NameWithConditions{Name: "clone", Conditions: seccomp.ArgumentConditions{
				{Argument: 0, Operation: seccomp.BitsSet, Value: flag}}})
		}
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
		// The flags of clone3(2) are out of a filter's sight. C libraries go on with
		// clone(2) where there is none.
		{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)},
		{Names: append(more[:len(more):len(more)], denied...), NamesWithCondtions: conditions, Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM)},
	}}
	rest, err := policy.Assemble()
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // seccomp_data.arch
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch[runtime.GOARCH], SkipTrue: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.EPERM)},
	}, rest...))
}

// nativeArch is the kernel's word for the architecture this program is for
// (linux/audit.h).
var nativeArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// filterCalls denies the calling thread, and what it starts, the system calls in
// denied and more; the thread has no new privileges to gain. It is for good.
func filterCalls(more []string) error {
	program, err := filter(more)
	if err != nil {
		return fmt.Errorf("make system call filter: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	// Without SECCOMP_FILTER_FLAG_TSYNC it is this thread's alone.
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("apply system call filter: %w", errno)
	}
	return nil
}
