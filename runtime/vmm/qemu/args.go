package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// inherited collects the files QEMU is started with besides its standard ones.
type inherited []*os.File

// add returns the number f has in QEMU.
func (in *inherited) add(f *os.File) string {
	*in = append(*in, f)
	return strconv.Itoa(2 + len(*in))
}

// descriptors are the numbers of inherited files; empty is none.
type descriptors struct{ monitor, tap, state string }

// arguments is the command line for a machine. The order of devices is part of
// the machine: it decides addresses, interrupts and names in the guest.
func arguments(s vmm.Spec, h findings, fd descriptors) []string {
	var args []string
	arg := func(name string, values ...string) {
		args = append(args, name)
		if len(values) > 0 {
			args = append(args, strings.Join(values, ","))
		}
	}
	arg("-name", "guest="+s.ID, "process=sietch-"+s.ID)
	arg("-nodefaults")
	arg("-no-user-config")
	arg("-display", "none")
	arg("-no-reboot") // a guest that restarts ends: the caller boots it anew
	arg("-msg", "timestamp=off")
	// Also what makes the run directory findable in the process list.
	arg("-pidfile", filepath.Join(s.RunDir, pidName))

	arg("-machine", "microvm", "memory-backend=ram",
		"acpi=on",                                      // how a distribution kernel finds virtio-mmio devices
		"ioapic2=off",                                  // 8 virtio slots are enough
		"auto-kernel-cmdline=off", "x-option-roms=off", // qboot needs neither
		"pcie=off", "usb=off", "graphics=off",
		"dump-guest-core=off", "mem-merge=off",
		"suppress-vmdesc=on")
	arg("-bios", h.firmware)
	arg("-accel", h.accelArg()...)
	arg("-cpu", h.cpu(s.Nested))
	arg("-smp", fmt.Sprintf("cpus=%d,sockets=1,cores=%d,threads=1", s.CPUs, s.CPUs))
	arg("-m", fmt.Sprintf("%dM", s.MemoryBytes>>20))
	ram := []string{"memory-backend-file", "id=ram", fmt.Sprintf("size=%d", s.MemoryBytes),
		"mem-path=" + escape(s.MemoryFile), "share=off", "prealloc=off", "merge=off", "dump=off"}
	if h.atLeast(8, 2) {
		ram = append(ram, "readonly=on", "rom=off")
	}
	arg("-object", ram...)

	arg("-chardev", "file", "id=sietch-console", "path="+escape(s.ConsoleLog), "append=on")
	arg("-serial", "chardev:sietch-console")
	// QEMU's ACPI tables list the slots from the last to the first, and that is
	// the order in which the guest's kernel numbers disks.
	slot := virtioSlots
	device := func(values ...string) {
		slot--
		arg("-device", append(values, fmt.Sprintf("bus=virtio-mmio-bus.%d", slot))...)
	}
	for _, d := range s.Disks {
		locking := "auto"
		if d.ReadOnly {
			// What nobody writes needs no lock. Other VMMs lock all of a file for
			// reading, which to QEMU looks like somebody who wants it unread.
			locking = "off"
		}
		arg("-blockdev", "driver=raw", "node-name="+d.ID, "discard=unmap", "read-only="+onOff(d.ReadOnly),
			"file.driver=file", "file.filename="+escape(d.Path), "file.aio="+diskAIO,
			"file.locking="+locking,
			// Buffered: direct I/O would write guest pages behind the back of
			// those who track writes to them.
			"cache.direct=off", "cache.no-flush=off")
		device("virtio-blk-device", "id=dev-"+d.ID, "drive="+d.ID, "serial="+d.ID, "num-queues=1")
	}
	if s.NIC != nil {
		arg("-netdev", "tap", "id="+s.NIC.ID, "fd="+fd.tap, "vhost=off")
		device("virtio-net-device", "id=dev-"+s.NIC.ID, "netdev="+s.NIC.ID, "mac="+s.NIC.MAC)
	}
	device("virtio-serial-device", "id=sietch-serial", "max_ports=1")
	arg("-chardev", "file", "id=sietch-main", "path="+escape(s.MainLog), "append=on")
	arg("-device", "virtconsole", "id=sietch-hvc0", "bus=sietch-serial.0", "chardev=sietch-main")
	device("virtio-rng-device", "id=sietch-rng")
	arg("-global", "virtio-mmio.force-legacy=false")

	arg("-chardev", "socket", "id=sietch-monitor", "fd="+fd.monitor, "server=on", "wait=off")
	arg("-mon", "chardev=sietch-monitor", "mode=control")

	// The state that xen-save-devices-state writes has no configuration section.
	arg("-global", "migration.send-configuration=off")
	if s.Restore == nil {
		arg("-kernel", s.Kernel)
		if s.Initramfs != "" {
			arg("-initrd", s.Initramfs)
		}
		arg("-append", strings.TrimSpace("console=ttyS0 "+s.Cmdline))
	} else {
		// Loading starts as soon as the machine is there and leaves it paused.
		// As an incoming machine it also skips the reset that would write
		// firmware tables into RAM.
		arg("-S")
		arg("-incoming", "fd:"+fd.state)
	}

	elevate := "deny"
	if s.Jail != nil {
		user := fmt.Sprintf("%d:%d", s.Jail.UID, s.Jail.GID)
		root := jailRoot(s.RunDir)
		if h.atLeast(9, 1) {
			arg("-run-with", "user="+user, "chroot="+escape(root))
		} else {
			arg("-runas", user)
			arg("-chroot", root)
		}
		// QEMU itself has to change its user, after the filter is in place. From
		// then on it has nothing to elevate: no capability, and no new privileges
		// by a program it would run (a seccomp filter brings that along).
		elevate = "allow"
	}
	arg("-sandbox", "on", "obsolete=deny", "elevateprivileges="+elevate, "spawn=deny", "resourcecontrol=deny")
	return args
}

const (
	// virtioSlots is what a microvm without a second I/O APIC has.
	virtioSlots = 8
	// maxDevices are the slots left beside console and entropy.
	maxDevices = virtioSlots - 2
)

// diskAIO: with buffered I/O QEMU's own threads are as fast as io_uring for
// what a guest does, and need no further system calls allowed.
const diskAIO = "threads"

// escape writes a value into one of QEMU's comma-separated option strings.
func escape(v string) string { return strings.ReplaceAll(v, ",", ",,") }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
