package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sietch-dev/sietch/runtime"
)

// endpoint is one side of a copy.
type endpoint struct {
	guest    string // sandbox; empty for the host
	path     string // in a guest absolute and clean
	stream   bool   // "-"
	asDir    bool   // a trailing slash: it must be a directory
	contents bool   // SRC/.: what is in it
}

func (p endpoint) String() string {
	if p.guest == "" {
		return p.path
	}
	return p.guest + ":" + p.path
}

// base is the last part of the path, empty for the root directory.
func (p endpoint) base() string {
	clean := filepath.Clean(p.path)
	if p.guest == "" {
		// "." and ".." have names of their own.
		if abs, err := filepath.Abs(clean); err == nil {
			clean = abs
		}
	}
	if clean == "/" {
		return ""
	}
	return filepath.Base(clean)
}

// parseEndpoint reads NAME:/path, a path of the host, or "-".
func parseEndpoint(s string) (endpoint, error) {
	p := endpoint{path: s}
	switch name, inside, ok := strings.Cut(s, ":"); {
	case s == "":
		return p, errors.New("is empty")
	case s == "-":
		p.stream = true
		return p, nil
	case strings.ContainsRune(s, 0):
		return p, fmt.Errorf("%s: a path has no NUL", quote(s))
	case ok && !strings.ContainsAny(name, "/") && !strings.HasPrefix(s, "."):
		if name == "" {
			return p, fmt.Errorf("%s: the sandbox before : is missing", quote(s))
		}
		if inside == "" {
			return p, fmt.Errorf("%s: the path behind : is missing", quote(s))
		}
		p.guest, p.path = name, inside
	}
	last := p.path[strings.LastIndexByte(p.path, '/')+1:]
	p.contents = last == "."
	p.asDir = last == "" || last == "." || last == ".."
	if p.guest != "" {
		p.path = path.Clean("/" + p.path)
	}
	return p, nil
}

// source is what is copied.
type source struct {
	base     string // its name; empty for a root directory
	isDir    bool
	contents bool // only what is in it
}

// target is what is at the destination.
type target struct {
	path          string
	exists, isDir bool
	asDir         bool // it was written as a directory
}

// place decides where a copy goes, as cp and docker cp do: into dir, as name.
// With name "." what is in the source goes into dir.
func place(from source, to target) (dir, name string, err error) {
	switch {
	case to.isDir && from.contents:
		return to.path, ".", nil
	case to.isDir:
		return to.path, from.base, nil
	case to.exists && from.isDir:
		return "", "", errors.New("a directory cannot take the place of a file")
	case to.exists && to.asDir:
		return "", "", errors.New("the destination is not a directory")
	case to.asDir && !from.isDir:
		return "", "", fmt.Errorf("the destination directory: %w", syscall.ENOENT)
	}
	return path.Dir(to.path), path.Base(to.path), nil
}

func joinGuest(dir, name string) string { return path.Join(dir, name) }

// splitGuest takes the last part off an absolute path.
func splitGuest(p string) (dir, name string) { return path.Dir(p), path.Base(p) }

func statHost(name string, follow bool) (fs.FileInfo, error) {
	stat := os.Lstat
	if follow {
		stat = os.Stat
	}
	st, err := stat(name)
	if err != nil {
		return nil, unwrapPath(err)
	}
	return st, nil
}

// hostTarget looks at a destination on the host. A link to a directory is that
// directory; a link to anything else is what the copy replaces.
func hostTarget(dst endpoint) (target, error) {
	abs, err := filepath.Abs(dst.path)
	if err != nil {
		return target{}, fmt.Errorf("copy to %s: %w", dst, err)
	}
	t := target{path: abs, asDir: dst.asDir}
	if st, err := os.Stat(abs); err == nil && st.IsDir() {
		t.exists, t.isDir = true, true
		return t, nil
	}
	switch st, err := os.Lstat(abs); {
	case err == nil:
		t.exists = true
		if st.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			return t, fmt.Errorf("copy to %s: it is neither a file nor a directory", dst)
		}
		return t, nil
	case !errors.Is(err, fs.ErrNotExist):
		return t, fmt.Errorf("copy to %s: %w", dst, unwrapPath(err))
	}
	if st, err := os.Stat(filepath.Dir(abs)); err != nil {
		return t, missing(unwrapPath(err), "copy to %s: directory %s", dst, filepath.Dir(abs))
	} else if !st.IsDir() {
		return t, fmt.Errorf("copy to %s: %s is not a directory", dst, filepath.Dir(abs))
	}
	return t, nil
}

// unwrapPath drops the system call and the path that the text names already.
func unwrapPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// missing says what an error is about. A path that was named and is not there
// is "not found" like a sandbox would be.
func missing(err error, format string, args ...any) error {
	e := &runtime.Error{Message: fmt.Sprintf(format, args...), Err: err}
	if errors.Is(err, fs.ErrNotExist) {
		e.Kind = runtime.ErrNotFound
	}
	return e
}
