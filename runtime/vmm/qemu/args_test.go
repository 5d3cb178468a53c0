package qemu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

func testSpec() vmm.Spec {
	return vmm.Spec{
		ID: "abc", RunDir: "/run/abc", CPUs: 2, MemoryBytes: 512 << 20, MemoryFile: "/d/ram,1",
		Kernel: "/k", Initramfs: "/i", Cmdline: "quiet",
		Disks:      []vmm.Disk{{ID: "image", Path: "/d/image", ReadOnly: true}, {ID: "layer", Path: "/d/layer"}},
		NIC:        &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:00:00:00:00:01"},
		ConsoleLog: "/d/console", MainLog: "/d/main",
	}
}

func testHost(version string, accel vmm.Accel) findings {
	h := findings{Version: version, Accel: accel}
	if err := h.complete("/usr/bin/qemu"); err != nil {
		panic(err)
	}
	return h
}

// options returns the values of one option, in order.
func options(args []string, name string) (values []string) {
	for i, a := range args {
		if a == name {
			values = append(values, args[i+1])
		}
	}
	return values
}

func TestArguments(t *testing.T) {
	args := arguments(testSpec(), testHost("7.2.22", vmm.TCG), descriptors{monitor: "3", tap: "4"})
	// The order is part of the machine: a change here makes old state unloadable.
	want := []string{
		"virtio-blk-device,id=dev-image,drive=image,serial=image,num-queues=1,bus=virtio-mmio-bus.7",
		"virtio-blk-device,id=dev-layer,drive=layer,serial=layer,num-queues=1,bus=virtio-mmio-bus.6",
		"virtio-net-device,id=dev-net0,netdev=net0,mac=02:00:00:00:00:01,bus=virtio-mmio-bus.5",
		"virtio-serial-device,id=sietch-serial,max_ports=1,bus=virtio-mmio-bus.4",
		"virtconsole,id=sietch-hvc0,bus=sietch-serial.0,chardev=sietch-main",
		"virtio-rng-device,id=sietch-rng,bus=virtio-mmio-bus.3",
	}
	if diff := cmp.Diff(want, options(args, "-device")); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	all := strings.Join(args, " ")
	for _, want := range []string{
		"mem-path=/d/ram,,1,share=off", "-append console=ttyS0 quiet", "-kernel /k -initrd /i", "-pidfile /run/abc/pid",
		"node-name=image,discard=unmap,read-only=on", "file.filename=/d/image,file.aio=threads,file.locking=off", "node-name=layer,discard=unmap,read-only=off",
		"cache.direct=off", "tap,id=net0,fd=4,vhost=off", "id=sietch-monitor,fd=3,server=on", "elevateprivileges=deny",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("arguments lack %q", want)
		}
	}
	for _, not := range []string{"-incoming", "-S ", "readonly=on,rom", "-runas", "-chroot"} {
		if strings.Contains(all, not) {
			t.Errorf("arguments hold %q", not)
		}
	}
}

// TestArgumentsOfVariants: each variant differs where it must and has the same
// devices.
func TestArgumentsOfVariants(t *testing.T) {
	base := arguments(testSpec(), testHost("7.2.22", vmm.TCG), descriptors{monitor: "3", tap: "4"})
	for _, c := range []struct {
		name      string
		version   string
		accel     vmm.Accel
		change    func(*vmm.Spec)
		has, lack []string
	}{
		{"restore", "7.2.22", vmm.TCG, func(s *vmm.Spec) { s.Restore = &vmm.Restore{Dir: "/s"} },
			[]string{"-S", "-incoming fd:5"}, []string{"-kernel /k", "-append", "-initrd"}},
		{"kvm", "7.2.22", vmm.KVM, func(*vmm.Spec) {}, []string{"-accel kvm", "-cpu host"}, []string{"tcg"}},
		{"read-only memory", "8.2.0", vmm.TCG, func(*vmm.Spec) {}, []string{"readonly=on,rom=off"}, nil},
		{"jail", "7.2.22", vmm.TCG, func(s *vmm.Spec) { s.Jail = &vmm.Jail{UID: 1000, GID: 1001} },
			[]string{"-runas 1000:1001", "-chroot /run/abc/root", "spawn=deny"}, []string{"-run-with"}},
		{"jail of a newer QEMU", "10.0.2", vmm.TCG, func(s *vmm.Spec) { s.Jail = &vmm.Jail{UID: 1000, GID: 1001} },
			[]string{"-run-with user=1000:1001,chroot=/run/abc/root"}, []string{"-runas", "-chroot"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSpec()
			c.change(&s)
			args := arguments(s, testHost(c.version, c.accel), descriptors{monitor: "3", tap: "4", state: "5"})
			if diff := cmp.Diff(options(base, "-device"), options(args, "-device")); diff != "" {
				t.Errorf("devices differ:\n%s", diff)
			}
			all := strings.Join(args, " ") + " "
			for _, w := range c.has {
				if !strings.Contains(all, w) {
					t.Errorf("arguments lack %q: %s", w, all)
				}
			}
			for _, w := range c.lack {
				if strings.Contains(all, w) {
					t.Errorf("arguments hold %q: %s", w, all)
				}
			}
		})
	}
}

func TestCheckCountsSlots(t *testing.T) {
	s := testSpec()
	s.NIC = nil
	for len(s.Disks) <= maxDevices {
		s.Disks = append(s.Disks, vmm.Disk{ID: "d" + string(rune('a'+len(s.Disks)))})
	}
	for i := range s.Disks {
		s.Disks[i].Path = "/proc/self/exe"
	}
	s.Kernel, s.Initramfs, s.MemoryFile, s.MemoryBytes = "/proc/self/exe", "", sparseFile(t, 32<<20), 32<<20
	if err := check(s); err == nil || !strings.Contains(err.Error(), "fit") {
		t.Errorf("%d disks: got %v", len(s.Disks), err)
	}
	s.Disks = s.Disks[:maxDevices]
	if err := check(s); err != nil {
		t.Errorf("%d disks: got %v", len(s.Disks), err)
	}
}
