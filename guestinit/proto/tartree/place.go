package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrConflict is wrapped when a directory would replace something else, or
	// something else a directory.
	ErrConflict = errors.New("a directory and something else cannot replace each other")
	// ErrUnsafe is wrapped when an entry would go outside the destination.
	ErrUnsafe = errors.New("leads out of the destination")
)

// place says where the entries of a stream go.
type place struct {
	dir string // existing directory
	// rename: the first element of every name is dropped and top put in its
	// place; an empty top drops the top entry and puts its children into dir.
	rename bool
	top    string
	// mustBeDir, mustBeFile: what the top entry has to be.
	mustBeDir, mustBeFile error

	seen string // first element of the names so far
}

// locate applies the rules of docker cp for the destination:
//
//	DST                  SRC is a file          SRC is a directory     SRC is a directory/.
//	does not exist       becomes DST            becomes DST            becomes DST
//	does not exist, DST/ error                  becomes DST            becomes DST
//	a file               replaces it            error                  error
//	a directory          goes into it           goes into it           its children go into it
//
// Links in DST, also one at its end, are followed.
func locate(o UnpackOptions) (*place, error) {
	dst := o.Path
	if o.Parents {
		dir := dst
		if o.Rename {
			dir = filepath.Dir(strings.TrimRight(dst, "/"))
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, named("make directory", dir, cause(err))
		}
	}
	fi, err := os.Stat(dst)
	switch {
	case err == nil && fi.IsDir():
		p := &place{dir: dst}
		if o.Contents {
			p.rename = true
			p.mustBeDir = fmt.Errorf("copy contents: the source: %w", unix.ENOTDIR)
		}
		return p, nil
	case err == nil && !o.Rename:
		return nil, named("unpack into", dst, unix.ENOTDIR)
	case err == nil && strings.HasSuffix(dst, "/"):
		return nil, named("copy to", dst, unix.ENOTDIR)
	case err != nil && (!o.Rename || !errors.Is(err, unix.ENOENT)):
		return nil, named("unpack into", dst, cause(err))
	}

	p := &place{rename: true}
	if err == nil {
		p.mustBeFile = fmt.Errorf("copy to %s: %w", dst, ErrConflict)
	} else if strings.HasSuffix(dst, "/") {
		p.mustBeDir = named("copy to", dst, unix.ENOENT)
	}
	target, err := followLast(dst)
	if err != nil {
		return nil, named("copy to", dst, err)
	}
	p.dir, p.top = filepath.Dir(target), filepath.Base(target)
	switch fi, err := os.Stat(p.dir); {
	case err != nil:
		return nil, named("copy to", dst+": directory "+p.dir, cause(err))
	case !fi.IsDir():
		return nil, named("copy to", dst+": directory "+p.dir, unix.ENOTDIR)
	}
	return p, nil
}

// followLast follows links at the end of a path whose target may not exist.
func followLast(p string) (string, error) {
	p = filepath.Clean(p)
	for range 40 {
		target, err := os.Readlink(p)
		if err != nil { // not a link, or not there
			return p, nil
		}
		if !filepath.IsAbs(target) {
			dir, err := filepath.EvalSymlinks(filepath.Dir(p))
			if err != nil {
				return "", cause(err)
			}
			target = filepath.Join(dir, target)
		}
		p = filepath.Clean(target)
	}
	return "", unix.ELOOP
}

// entry is where an entry goes, relative to dir, "." for dir itself.
func (p *place) entry(h *tar.Header) (string, error) {
	name, err := p.name(h.Name)
	if err != nil || !p.rename {
		return name, err
	}
	if name == "." || name == p.top {
		isDir := h.Typeflag == tar.TypeDir
		if !isDir && p.mustBeDir != nil {
			return "", p.mustBeDir
		}
		if isDir && p.mustBeFile != nil {
			return "", p.mustBeFile
		}
	}
	return name, nil
}

// name maps a name of the stream, also the target of a hard link.
func (p *place) name(in string) (string, error) {
	// Absolute names are taken to be relative, as tar does.
	name := path.Clean(strings.TrimLeft(in, "/"))
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", fmt.Errorf("entry %q: %w", in, ErrUnsafe)
	}
	if !p.rename {
		return name, nil
	}
	first, rest, _ := strings.Cut(name, "/")
	if p.seen == "" {
		p.seen = first
	}
	if first != p.seen {
		return "", fmt.Errorf("entry %q is not below %q: the stream has several sources and the destination one name", in, p.seen)
	}
	return path.Join(p.top, rest, "."), nil
}
