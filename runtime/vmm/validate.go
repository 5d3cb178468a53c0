package vmm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Validate checks what every driver needs, without a side effect, and reports
// all that is wrong, one line a field. Files are looked at too: some VMMs make
// what they do not find.
func (s Spec) Validate() error {
	var wrong []error
	bad := func(field, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	file := func(field, p string, size int64) {
		st, err := os.Stat(p)
		switch {
		case err != nil:
			bad(field, "%v", err)
		case !st.Mode().IsRegular():
			bad(field, "%s is not a regular file", p)
		case st.Size() < size:
			bad(field, "%s has %d bytes, %d are needed", p, st.Size(), size)
		}
	}
	path := func(field, p string) (ok bool) {
		switch {
		case p == "":
			bad(field, "is empty")
		case !filepath.IsAbs(p):
			bad(field, "%q is not absolute", p)
		case strings.ContainsAny(p, "\x00\n"):
			bad(field, "%q has a control character", p)
		default:
			return true
		}
		return false
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
	if path("MemoryFile", s.MemoryFile) {
		file("MemoryFile", s.MemoryFile, s.MemoryBytes)
	}
	if s.Restore == nil {
		if path("Kernel", s.Kernel) {
			file("Kernel", s.Kernel, 1)
		}
		if s.Initramfs != "" && path("Initramfs", s.Initramfs) {
			file("Initramfs", s.Initramfs, 1)
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
		if field := fmt.Sprintf("Disks[%d].Path", i); path(field, d.Path) {
			file(field, d.Path, 1)
		}
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
	if s.Jail != nil && (s.Jail.UID <= 0 || s.Jail.GID <= 0) {
		bad("Jail", "user %d and group %d are not both above 0", s.Jail.UID, s.Jail.GID)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("machine cannot be made as described: %w", errors.Join(wrong...))
	}
	return nil
}

// validID accepts what every VMM takes as a device id and virtio-blk as a serial,
// less the prefix that drivers use for devices of their own.
func validID(id string) bool {
	if id == "" || len(id) > 20 || strings.HasPrefix(id, "sietch-") {
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
