package hosttar

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// ErrEscape: an entry of a stream leads out of what was asked for.
var ErrEscape = errors.New("entry leads out of the copied path")

// top is the entry that was asked for, beneath which all others are.
type top struct {
	// base is its name: the last part of the path that was asked for. The root
	// directory has none; there the first entry says what it goes by.
	base  string
	found bool
}

// name is that of an entry relative to the top one.
func (t *top) name(h *tar.Header) (string, error) {
	if t.base == "" && !t.found {
		if first := path.Clean(h.Name); h.Typeflag == tar.TypeDir && first != "." && !strings.Contains(first, "/") {
			t.base = first
		}
	}
	t.found = true
	return beneath(t.base, h.Name)
}

// beneath is the name of an entry relative to base: "." for base itself. With an
// empty base it is the name itself.
func beneath(base, entry string) (string, error) {
	name := path.Clean(entry)
	if entry == "" || !filepath.IsLocal(name) || climbs(entry) {
		return "", fmt.Errorf("%w: %q", ErrEscape, entry)
	}
	switch {
	case base == "":
		return name, nil
	case name == base:
		return ".", nil
	}
	rel, ok := strings.CutPrefix(name, base+"/")
	if !ok {
		return "", fmt.Errorf("%w: %q is not beneath %q", ErrEscape, entry, base)
	}
	return rel, nil
}

// climbs says whether a name has a ".." in it, even one that cleaning removes:
// no tar writer has a reason for it.
func climbs(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}
