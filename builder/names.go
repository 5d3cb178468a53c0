package builder

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

// maxNameBytes keeps names usable as file names and readable in tables.
const maxNameBytes = 180

var (
	idPattern     = regexp.MustCompile(`^(?:sha256:)?([0-9a-f]{4,64})$`)
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func isDigest(s string) bool { return digestPattern.MatchString(s) }

// ParseName checks a NAME[:TAG] and returns its full form, always with a tag:
// "debian" is "debian:latest", "docker.io/library/debian:12" is "debian:12".
// Upper case, "..", NUL and whatever else cannot name an image are refused with
// ErrInvalidName.
func ParseName(name string) (string, error) {
	if len(name) > maxNameBytes {
		return "", fmt.Errorf("%w: %.20s… is longer than %d bytes", ErrInvalidName, name, maxNameBytes)
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", withHint(fmt.Errorf("%w %q: %w", ErrInvalidName, name, err),
			"a name is lower case letters and digits with single '.', '_', '-' or '/' between them, and an optional :TAG")
	}
	if _, ok := named.(reference.Digested); ok {
		return "", fmt.Errorf("%w %q: a digest is no part of a name", ErrInvalidName, name)
	}
	if strings.HasPrefix(named.Name(), localDomain+"/") {
		return "", fmt.Errorf("%w %q: the domain is reserved", ErrInvalidName, name)
	}
	full := reference.FamiliarString(reference.TagNameOnly(named))
	if len(full) > maxNameBytes {
		return "", fmt.Errorf("%w: %.20s… is longer than %d bytes", ErrInvalidName, name, maxNameBytes)
	}
	return full, nil
}

// SplitName takes a full name apart at its tag.
func SplitName(full string) (name, tag string) {
	if i := strings.LastIndexByte(full, ':'); i > strings.LastIndexByte(full, '/') {
		return full[:i], full[i+1:]
	}
	return full, ""
}

// canonicalName is a full name with its registry: what other tools call it.
func canonicalName(full string) string {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return full
	}
	return named.String()
}

// nameFile is the file name a name is kept under, and back.
func nameFile(full string) string { return url.PathEscape(full) }

func nameOfFile(file string) (string, error) { return url.PathUnescape(file) }
