package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Names are the files that say who this machine is. They are kept in memory and
// mounted over the image's, so that no layer, diff or merge contains what is
// this copy's alone. Giving a copy its own is a few stores to mapped memory.
type Names struct {
	dir   string
	files map[string]*mappedFile
}

// The files, as they are called in the directory of Names.
const (
	hostname  = "hostname"
	hosts     = "hosts"
	resolv    = "resolv.conf"
	machineID = "machine-id"
	bootID    = "boot_id"
)

// nameFiles are those that an identity changes.
var nameFiles = []string{hostname, hosts, machineID, bootID}

// NamesOptions say what Mount mounts.
type NamesOptions struct {
	// Dir is where the files are made; it is created, and must be in memory.
	Dir string
	// Root is the machine's root, "/" but in tests.
	Root string
	// DNS is the name server; empty for a machine that must not have one.
	DNS string
	// MachineID mounts a machine id also where the image has none.
	MachineID bool
	// mount mounts the file src over dst; tests replace it.
	mount func(src, dst string) error
}

// Mount makes the files and mounts them. What one image makes impossible (a
// file where /etc should be, say) is a remark; the other files are mounted all
// the same.
func Mount(o NamesOptions) (_ *Names, remarks []error, err error) {
	if o.mount == nil {
		o.mount = func(src, dst string) error { return unix.Mount(src, dst, "", unix.MS_BIND, "") }
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make names: %w", err)
	}
	nameServer := ""
	if o.DNS != "" {
		nameServer = "nameserver " + o.DNS + "\n"
	}
	for name, text := range map[string]string{hostname: "", hosts: hostsFile(""), resolv: nameServer, machineID: "", bootID: ""} {
		if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(text), 0o644); err != nil {
			return nil, nil, fmt.Errorf("make names: %w", err)
		}
	}
	n, err := OpenNames(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	remark := func(err error) {
		if err != nil {
			remarks = append(remarks, err)
		}
	}
	etc := filepath.Join(o.Root, "etc")
	for _, name := range []string{hostname, hosts, resolv} {
		remark(o.cover(name, filepath.Join(etc, name), true))
	}
	remark(o.cover(machineID, filepath.Join(etc, machineID), o.MachineID))
	// Where it is a file of its own and not the usual link to the other.
	dbus := filepath.Join(o.Root, "var/lib/dbus/machine-id")
	if fi, err := os.Lstat(dbus); err == nil && fi.Mode().IsRegular() {
		remark(o.cover(machineID, dbus, false))
	}
	remark(o.cover(bootID, filepath.Join(o.Root, "proc/sys/kernel/random/boot_id"), false))
	return n, remarks, nil
}

// OpenNames is Names that another process has mounted from dir. It is held for
// the rest of the process's life.
func OpenNames(dir string) (*Names, error) {
	n := &Names{dir, make(map[string]*mappedFile)}
	for _, name := range nameFiles {
		f, err := mapFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("open names: %w", err)
		}
		n.files[name] = f
	}
	return n, nil
}

// cover mounts a file of ours over one of the machine's. Where that is missing
// it is left out, or made if create is set, with the directories in front of it.
func (o NamesOptions) cover(name, target string, create bool) error {
	at, err := o.place(target, create)
	if err == nil && at != "" {
		err = o.mount(filepath.Join(o.Dir, name), at)
	}
	if err != nil {
		return fmt.Errorf("mount over %s: %w", target, err)
	}
	return nil
}

// place returns the file that programs open as target; "" when there is none.
func (o NamesOptions) place(target string, create bool) (string, error) {
	at, err := resolve(o.Root, target)
	if err == nil {
		var fi fs.FileInfo
		if fi, err = os.Lstat(at); err == nil && !fi.Mode().IsRegular() {
			return "", errors.New("it is no file")
		}
	}
	if err == nil {
		return at, nil
	}
	absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
	if absent && !create {
		return "", nil
	}
	if absent && at != "" {
		if err = makeFile(at); err == nil {
			return at, nil
		}
	}
	// A link that leads nowhere, or to where no file can be made, as into /proc.
	if fi, lerr := os.Lstat(target); create && lerr == nil && fi.Mode()&fs.ModeSymlink != 0 {
		return target, errors.Join(os.Remove(target), makeFile(target))
	}
	return "", err
}

func makeFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// maxLinks is the kernel's own limit.
const maxLinks = 40

// resolve follows the links of path, which is below root, as a program whose
// root is root would, dangling ones to their end included.
func resolve(root, path string) (string, error) {
	rest := strings.TrimPrefix(filepath.Clean(path), filepath.Clean(root))
	at, links := root, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		switch part {
		case "", ".":
			continue
		case "..":
			if at != root {
				at = filepath.Dir(at)
			}
			continue
		}
		next := filepath.Join(at, part)
		fi, err := os.Lstat(next)
		if err != nil || fi.Mode()&fs.ModeSymlink == 0 {
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", unix.ELOOP
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = target + "/" + rest
	}
	return at, nil
}

// write puts an identity's names into the files.
func (n *Names) write(id proto.Identity) error {
	for _, f := range []struct{ name, value, text string }{
		{hostname, id.Hostname, id.Hostname + "\n"},
		{hosts, id.Hostname, hostsFile(id.Hostname)},
		{machineID, id.MachineID, id.MachineID + "\n"},
		{bootID, id.BootID, id.BootID + "\n"},
	} {
		if f.value == "" {
			continue
		}
		if err := n.files[f.name].set(f.text); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return nil
}

// hostsFile has the same length whatever the name, as long as that is a host
// name: a file that keeps its length is replaced without a system call.
func hostsFile(name string) string {
	const longest = 64
	line := ""
	if name != "" {
		line = proto.GuestAddr + "\t" + name
	}
	line += strings.Repeat(" ", max(0, len(proto.GuestAddr)+1+longest-len(line)))
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + line + "\n"
}
