package agent

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// account is who a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary
	name     string   // empty where the image knows no name for uid
	home     string
}

func (a account) credential() *syscall.Credential {
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
}

// lookupAccount resolves USER as docker does: a name or number, optionally
// ":group" as name or number, from the machine's own passwd and group files.
// Numbers need not be in either; names must. An explicit group is the only one,
// otherwise the supplementary groups are those that list the user.
func lookupAccount(passwd, group, user string) (account, error) {
	name, groupName, explicit := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	a := account{home: "/"}
	entry, err := findEntry(passwd, 7, func(f []string) bool {
		return f[0] == name || f[2] == name
	})
	if err != nil {
		return a, err
	}
	switch id, numeric := parseID(name); {
	case entry != nil:
		uid, ok1 := parseID(entry[2])
		gid, ok2 := parseID(entry[3])
		if !ok1 || !ok2 {
			return a, coded(proto.CodeInvalid, "user %s: malformed entry in %s", name, passwd)
		}
		a.uid, a.gid, a.name, a.home = uid, gid, entry[0], entry[5]
		if a.home == "" {
			a.home = "/"
		}
	case numeric:
		a.uid = id
	case name == "root":
		// An image without accounts still has a root.
	default:
		return a, coded(proto.CodeInvalid, "user %s: no such user in %s of the sandbox", name, passwd)
	}
	if a.uid == 0 && a.name == "" {
		a.name, a.home = "root", "/root"
		if fi, err := os.Stat(a.home); err != nil || !fi.IsDir() {
			a.home = "/"
		}
	}

	if explicit {
		a.gid, err = lookupGroup(group, groupName)
		return a, err
	}
	if a.name == "" {
		return a, nil
	}
	_, err = findEntry(group, 4, func(f []string) bool {
		if gid, ok := parseID(f[2]); ok && gid != a.gid && slices.Contains(strings.Split(f[3], ","), a.name) {
			a.groups = append(a.groups, gid)
		}
		return false
	})
	return a, err
}

func lookupGroup(group, name string) (uint32, error) {
	entry, err := findEntry(group, 4, func(f []string) bool { return f[0] == name || f[2] == name })
	if err != nil {
		return 0, err
	}
	if entry != nil {
		name = entry[2]
	}
	gid, ok := parseID(name)
	if !ok {
		return 0, coded(proto.CodeInvalid, "group %s: no such group in %s of the sandbox", name, group)
	}
	return gid, nil
}

func parseID(s string) (uint32, bool) {
	// The all-ones id means "leave as it is" to the kernel.
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}

// findEntry returns the fields of the first line that matches, nil if none
// does or there is no such file. Fields that a line lacks are empty.
func findEntry(file string, fields int, match func([]string) bool) ([]string, error) {
	b, err := readFile(file)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up account: read %s: %w", file, err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.SplitN(line, ":", fields)
		for len(f) < fields {
			f = append(f, "")
		}
		if match(f) {
			return f, nil
		}
	}
	return nil, nil
}

// readFile is os.ReadFile without its attempts to poll a plain file, for files
// that every exec reads.
func readFile(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4<<10)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return b, err
		}
		b = b[:len(b)+n]
	}
}
