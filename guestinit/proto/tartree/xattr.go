package tartree

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// paxXattr is the prefix under which GNU tar, star and Go keep attributes.
const paxXattr = "SCHILY.xattr."

// keptXattr reports whether an attribute belongs to the file rather than to
// the system it is on. Unless trusted, only what any user may set.
func keptXattr(name string, trusted bool) bool {
	switch {
	case strings.HasPrefix(name, "user."):
		return true
	case !trusted, name == "security.selinux", strings.HasPrefix(name, "trusted.overlay."):
		return false
	}
	return true
}

func readXattrs(fd int) (map[string]string, error) {
	names, err := sized(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) })
	if err != nil || len(names) == 0 {
		return nil, ignoreUnsupported(err)
	}
	var records map[string]string
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if !keptXattr(name, true) {
			continue
		}
		value, err := sized(func(b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if records == nil {
			records = make(map[string]string)
		}
		records[paxXattr+name] = string(value)
	}
	return records, nil
}

// sized calls get with a buffer that is large enough.
func sized(get func([]byte) (int, error)) ([]byte, error) {
	n, err := get(nil)
	for {
		if err != nil || n == 0 {
			return nil, err
		}
		b := make([]byte, n)
		if n, err = get(b); err == nil {
			return b[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) {
			return nil, err
		}
		n, err = get(nil) // it grew
	}
}

func writeXattrs(fd int, records map[string]string, trusted bool) error {
	for key, value := range records {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok || !keptXattr(name, trusted) {
			continue
		}
		if err := ignoreUnsupported(unix.Fsetxattr(fd, name, []byte(value), 0)); err != nil {
			return err
		}
	}
	return nil
}

// ignoreUnsupported is for file systems without attributes, such as vfat.
func ignoreUnsupported(err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}
