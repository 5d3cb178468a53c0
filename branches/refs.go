package branches

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// RefName is a typed ref: "branch/NAME" or "tag/NAME".
type RefName string

const (
	branchPrefix = "branch/"
	tagPrefix    = "tag/"
)

// BranchRef and TagRef name a ref. They do not validate; Update does.
func BranchRef(name string) RefName { return RefName(branchPrefix + name) }
func TagRef(name string) RefName    { return RefName(tagPrefix + name) }

// Branch returns the branch's name, and whether n is a branch at all.
func (n RefName) Branch() (string, bool) { return strings.CutPrefix(string(n), branchPrefix) }

// Tag returns the tag's name, and whether n is a tag at all.
func (n RefName) Tag() (string, bool) { return strings.CutPrefix(string(n), tagPrefix) }

func (n RefName) String() string {
	if b, ok := n.Branch(); ok {
		return "branch " + b
	}
	if t, ok := n.Tag(); ok {
		return "tag " + t
	}
	return string(n)
}

// Ref is a named commit.
type Ref struct {
	Name   RefName
	Commit Hash
}

// MaxNameBytes bounds every name of the product.
const MaxNameBytes = 63

// ValidateName checks a branch, tag or sandbox name: [a-z0-9][a-z0-9._-]{0,62}
// without "..". The error wraps ErrInvalidRef and says what is wrong.
func ValidateName(name string) error {
	bad := func(why string) error {
		shown := name
		if len(shown) > MaxNameBytes {
			shown = shown[:MaxNameBytes] + "…"
		}
		return fmt.Errorf("name %q: %w: %s", shown, ErrInvalidRef, why)
	}
	switch {
	case name == "":
		return bad("it is empty")
	case len(name) > MaxNameBytes:
		return bad(fmt.Sprintf("longer than %d characters", MaxNameBytes))
	case strings.Contains(name, ".."):
		return bad(`it contains ".."`)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if i == 0 && !alnum {
			return bad("it must start with a lower-case letter or a digit")
		}
		if !alnum && c != '.' && c != '_' && c != '-' {
			return bad("only lower-case letters, digits, '.', '_' and '-' are allowed")
		}
	}
	return nil
}

// Update is a set of changes to refs and HEADs that happens as a whole or not
// at all.
type Update struct {
	Refs  []RefUpdate
	Heads []HeadUpdate
}

// RefUpdate moves one ref by compare-and-swap.
type RefUpdate struct {
	Name RefName
	// Old is where the ref must be now; zero: it must not exist.
	Old Hash
	// New is where it goes; zero: it is deleted. [Self] is the commit being written.
	New Hash
	// Force moves it wherever it is.
	Force bool
}

// Head is what a sandbox has checked out: a branch, which need not exist yet
// (unborn), or a commit.
type Head struct {
	Branch string
	Commit Hash // detached; zero when Branch is set
}

// HeadUpdate changes one sandbox's HEAD and appends to its reflog.
type HeadUpdate struct {
	Sandbox string // sandbox id
	Head    Head
	// Commit is where HEAD points: the state the sandbox came from. Zero for an
	// unborn branch, or Self.
	Commit Hash
	Reflog []ReflogEntry // oldest first
	// Delete forgets the HEAD and the whole reflog of the sandbox.
	Delete bool
}

// HeadState is a stored HEAD.
type HeadState struct {
	Head   Head
	Commit Hash // zero when unborn
}

// ReflogEntry is one move of a HEAD.
type ReflogEntry struct {
	Commit  Hash // where HEAD went; Self in an update
	Action  string
	Message string
	Time    time.Time // zero in an update: now
}

// Update applies tx in one transaction. ErrRefMoved when a ref is not at its
// Old, ErrCheckedOut when two sandboxes would have one branch checked out or a
// checked-out branch would be deleted, ErrNotFound when a New does not exist.
func (s *Store) Update(ctx context.Context, tx Update) error { return errors.ErrUnsupported }

// Head returns the HEAD of a sandbox, ErrNotFound when it has none.
func (s *Store) Head(ctx context.Context, sandboxID string) (HeadState, error) {
	return HeadState{}, errors.ErrUnsupported
}

// Heads returns all HEADs by sandbox id.
func (s *Store) Heads(ctx context.Context) (map[string]HeadState, error) {
	return nil, errors.ErrUnsupported
}

// Reflog returns the moves of a sandbox's HEAD, newest first; entry n is NAME@{n}.
func (s *Store) Reflog(ctx context.Context, sandboxID string) ([]ReflogEntry, error) {
	return nil, errors.ErrUnsupported
}

// Ref returns one ref, ErrNotFound when there is none.
func (s *Store) Ref(ctx context.Context, name RefName) (Ref, error) {
	return Ref{}, errors.ErrUnsupported
}

// Branches returns all branches by name.
func (s *Store) Branches(ctx context.Context) ([]Ref, error) { return nil, errors.ErrUnsupported }

// Tags returns all tags by name.
func (s *Store) Tags(ctx context.Context) ([]Ref, error) { return nil, errors.ErrUnsupported }
