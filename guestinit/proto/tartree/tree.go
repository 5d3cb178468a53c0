package tartree

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tree resolves names beneath a directory. It keeps the directories from the
// root to the last entry open, so that the entries of a stream, which mostly
// come depth first, need no lookup, and so that a directory's modification time
// is set when the stream has left it.
type tree struct {
	root  int
	whole bool // root is "/": everything is beneath it, absolute links too
	// passLinks: links that were there before may lead out of the tree.
	passLinks bool
	ownLink   bool // the stream has made a link that might lead out

	open []directory
}

type directory struct {
	name  string
	fd    int
	mtime time.Time
}

// parent returns the directory a name is in, made if missing, and the last
// element. The descriptor is the tree's and valid until its next call.
func (t *tree) parent(name string) (fd int, base string, err error) {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if dir == "." {
		t.leave("")
		return t.root, base, nil
	}
	t.leave(dir)
	if n := len(t.open); n > 0 && t.open[n-1].name == dir {
		return t.open[n-1].fd, base, nil
	}
	fd, err = t.openDir(dir)
	if errors.Is(err, unix.ENOENT) {
		if err = t.makeAll(dir); err == nil {
			fd, err = t.openDir(dir)
		}
	}
	if err != nil {
		return -1, "", err
	}
	t.enter(dir, fd, time.Time{})
	return fd, base, nil
}

// existing returns a descriptor of its own for the directory of a name that
// must be there.
func (t *tree) existing(name string) (fd int, base string, err error) {
	dir, base := path.Split(name)
	fd, err = t.openDir(path.Clean(dir))
	return fd, base, err
}

// lookup opens a name that is a directory or a link to one.
func (t *tree) lookup(name string) (fd int, ok bool) {
	fd, err := t.openDir(name)
	return fd, err == nil
}

func (t *tree) openDir(name string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	if t.whole {
		how.Resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	}
	for {
		fd, err := unix.Openat2(t.root, name, how)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR: // something was renamed under the lookup
			continue
		case err != unix.EXDEV:
			return fd, err
		case t.passLinks && !t.ownLink:
			return unix.Openat(t.root, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		return -1, fmt.Errorf("%s: a link on the way %w", name, ErrUnsafe)
	}
}

// makeAll makes a directory that the stream has files for but did not mention.
func (t *tree) makeAll(dir string) error {
	for i := range len(dir) + 1 {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		at, err := t.openDir(path.Dir(dir[:i]))
		if err != nil {
			return err
		}
		err = unix.Mkdirat(at, path.Base(dir[:i]), 0o755)
		unix.Close(at)
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	return nil
}

// noteLink remembers whether the stream has made a link that may lead out.
// Which one a later name passes through cannot be told after the fact, so from
// then on no name may pass through any.
func (t *tree) noteLink(target string) {
	if path.IsAbs(target) || target == ".." || strings.Contains(target, "../") || strings.HasSuffix(target, "/..") {
		t.ownLink = true
	}
}

// enter makes fd the innermost open directory. A zero mtime is left alone.
func (t *tree) enter(name string, fd int, mtime time.Time) {
	t.leave(name)
	if n := len(t.open); n > 0 && t.open[n-1].name == name { // mentioned twice
		t.pop()
	}
	t.open = append(t.open, directory{name, fd, mtime})
}

// leave closes the open directories that name is not in or equal to.
func (t *tree) leave(name string) {
	for n := len(t.open); n > 0; n = len(t.open) {
		at := t.open[n-1].name
		if name == at || strings.HasPrefix(name, at) && name[len(at)] == '/' {
			return
		}
		t.pop()
	}
}

func (t *tree) pop() {
	n := len(t.open) - 1
	d := t.open[n]
	t.open = t.open[:n]
	if !d.mtime.IsZero() {
		// Only cosmetic, and a directory may have been removed meanwhile.
		unix.UtimesNanoAt(d.fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(d.mtime.UnixNano())}, unix.AT_EMPTY_PATH)
	}
	unix.Close(d.fd)
}

func (t *tree) close() { t.leave("") }
