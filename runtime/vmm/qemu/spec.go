package qemu

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// validate checks everything about a Spec that can be checked without a side
// effect and reports all of it, one line a field.
func validate(s vmm.Spec) error {
	var wrong []error
	bad := func(field, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	path := func(field, p string) {
		switch {
		case p == "":
			bad(field, "is empty")
		case !filepath.IsAbs(p):
			bad(field, "%q is not absolute", p)
		case strings.ContainsAny(p, "\x00\n"):
			bad(field, "%q has a control character", p)
		}
	}
	if s.ID == "" || strings.ContainsAny(s.ID, ",=\x00\n") {
		bad("ID", "%q cannot be used", s.ID)
	}
	path("RunDir", s.RunDir)
	if len(s.RunDir) >= 90 {
		bad("RunDir", "%d bytes are too long for a socket in it", len(s.RunDir))
	}
	if s.CPUs < 1 || s.CPUs > 255 {
		bad("CPUs", "%d is not between 1 and 255", s.CPUs)
	}
	if s.MemoryBytes < 32<<20 || s.MemoryBytes%(1<<20) != 0 {
		bad("MemoryBytes", "%d is not a number of MiB from 32 on", s.MemoryBytes)
	}
	path("MemoryFile", s.MemoryFile)
	if s.Restore == nil {
		path("Kernel", s.Kernel)
		if s.Initramfs != "" {
			path("Initramfs", s.Initramfs)
		}
	} else {
		path("Restore.Dir", s.Restore.Dir)
	}
	path("ConsoleLog", s.ConsoleLog)
	path("MainLog", s.MainLog)
	if s.NetNS != "" {
		path("NetNS", s.NetNS)
	}
	ids := map[string]bool{}
	id := func(field, id string) {
		switch {
		case !validID(id):
			bad(field, "%q is not a device id", id)
		case ids[id]:
			bad(field, "%q is used twice", id)
		}
		ids[id] = true
	}
	for i, d := range s.Disks {
		id(fmt.Sprintf("Disks[%d].ID", i), d.ID)
		path(fmt.Sprintf("Disks[%d].Path", i), d.Path)
	}
	if s.NIC != nil {
		id("NIC.ID", s.NIC.ID)
		if s.NIC.Tap == "" || len(s.NIC.Tap) > 15 {
			bad("NIC.Tap", "%q is not the name of an interface", s.NIC.Tap)
		}
		if m, err := net.ParseMAC(s.NIC.MAC); err != nil || len(m) != 6 || m[0]&1 != 0 {
			bad("NIC.MAC", "%q is not the address of a card", s.NIC.MAC)
		}
	}
	if len(ids) > maxDevices {
		bad("Disks", "%d devices, at most %d fit", len(ids), maxDevices)
	}
	if s.Jail != nil && (s.Jail.UID <= 0 || s.Jail.GID <= 0) {
		bad("Jail", "user %d and group %d are not both above 0", s.Jail.UID, s.Jail.GID)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("machine cannot be made as described: %w", errors.Join(wrong...))
	}
	return nil
}

const (
	// virtioSlots is what a microvm without a second I/O APIC has.
	virtioSlots = 8
	// maxDevices are the slots left beside console and entropy.
	maxDevices = virtioSlots - 2
)

// validID accepts what QEMU takes as an id, less the names used here.
func validID(id string) bool {
	if id == "" || len(id) > 20 || strings.HasPrefix(id, "sietch-") { // virtio-blk's serial has 20 bytes
		return false
	}
	for i, r := range id {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '-' && r != '.' && r != '_') {
			return false
		}
	}
	return true
}
