package hosttar

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// ErrEscape: an entry of a stream leads out of what was asked for.
var ErrEscape = errors.New("entry leads out of the copied path")

// beneath is the name of an entry relative to base, the one that was asked for:
// "." for base itself. With an empty base, that of the root directory, it is
// the name itself.
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
