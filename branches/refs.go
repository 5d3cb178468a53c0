package branches

import (
	"bytes"
	"context"
	"fmt"
	"strings"
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
func (n RefName) Branch() (string, bool) { return n.cut(branchPrefix) }

// Tag returns the tag's name, and whether n is a tag at all.
func (n RefName) Tag() (string, bool) { return n.cut(tagPrefix) }

func (n RefName) cut(prefix string) (string, bool) {
	name, ok := strings.CutPrefix(string(n), prefix)
	if !ok {
		return "", false
	}
	return name, true
}

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
// without "..". The error says what is wrong with it, not again what it is, and
// wraps ErrInvalidRef.
func ValidateName(name string) error {
	switch {
	case name == "":
		return invalid("it is empty")
	case len(name) > MaxNameBytes:
		return invalid(fmt.Sprintf("longer than %d characters", MaxNameBytes))
	case strings.Contains(name, ".."):
		return invalid(`it contains ".."`)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if i == 0 && !alnum {
			return invalid("it must start with a lower-case letter or a digit")
		}
		if !alnum && c != '.' && c != '_' && c != '-' {
			return invalid("only lower-case letters, digits, '.', '_' and '-' are allowed")
		}
	}
	return nil
}

// Head returns the HEAD of a sandbox, ErrNotFound when it has none.
func (s *Store) Head(ctx context.Context, sandboxID string) (HeadState, error) {
	end, err := s.begin()
	if err != nil {
		return HeadState{}, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	h, ok, err := v.head(sandboxID)
	if err == nil && !ok {
		err = fmt.Errorf("HEAD of sandbox %s: %w", sandboxID, ErrNotFound)
	}
	return h, err
}

func (v *view) head(sandboxID string) (h HeadState, ok bool, err error) {
	ok, err = v.get(headKey(sandboxID), func(val []byte) error {
		var err error
		if h, err = decodeHead(val); err != nil {
			err = &CorruptError{Kind: "head", Object: sandboxID, Reason: err.Error()}
		}
		return err
	})
	return h, ok, err
}

// Heads returns all HEADs by sandbox id.
func (s *Store) Heads(ctx context.Context) (map[string]HeadState, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	return v.heads()
}

func (v *view) heads() (map[string]HeadState, error) {
	out := map[string]HeadState{}
	err := v.scan([]byte{tableHead}, func(key, val []byte) error {
		h, err := decodeHead(val)
		if err != nil {
			return &CorruptError{Kind: "head", Object: string(key[1:]), Reason: err.Error()}
		}
		out[string(key[1:])] = h
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read HEADs: %w", err)
	}
	return out, nil
}

// Reflog returns the moves of a sandbox's HEAD, newest first; entry n is NAME@{n}.
func (s *Store) Reflog(ctx context.Context, sandboxID string) ([]ReflogEntry, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	return v.reflog(sandboxID)
}

func (v *view) reflog(sandboxID string) ([]ReflogEntry, error) {
	var out []ReflogEntry
	err := v.scan(reflogPrefix(sandboxID), func(key, val []byte) error {
		e, err := decodeReflog(val)
		if err != nil {
			return &CorruptError{Kind: "reflog", Object: sandboxID, Reason: err.Error()}
		}
		out = append(out, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read reflog of sandbox %s: %w", sandboxID, err)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out, nil
}

// Ref returns one ref, ErrNotFound when there is none.
func (s *Store) Ref(ctx context.Context, name RefName) (Ref, error) {
	end, err := s.begin()
	if err != nil {
		return Ref{}, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	h, err := v.ref(name)
	if err == nil && h.IsZero() {
		err = &RefError{Name: name, Err: ErrNotFound}
	}
	if err != nil {
		return Ref{}, err
	}
	return Ref{Name: name, Commit: h}, nil
}

// ref returns where a ref is, zero when there is none.
func (v *view) ref(name RefName) (h Hash, err error) {
	_, err = v.get(refKey(name), func(val []byte) error {
		var err error
		if h, err = decodeRef(val); err != nil {
			err = &CorruptError{Kind: "ref", Object: string(name), Reason: err.Error()}
		}
		return err
	})
	return h, err
}

// Branches returns all branches by name.
func (s *Store) Branches(ctx context.Context) ([]Ref, error) { return s.refs(branchPrefix) }

// Tags returns all tags by name.
func (s *Store) Tags(ctx context.Context) ([]Ref, error) { return s.refs(tagPrefix) }

func (s *Store) refs(prefix string) ([]Ref, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	return v.refs(prefix)
}

func (v *view) refs(prefix string) ([]Ref, error) {
	var out []Ref
	err := v.scan(refKey(RefName(prefix)), func(key, val []byte) error {
		name := RefName(bytes.Clone(key[1:]))
		h, err := decodeRef(val)
		if err != nil {
			return &CorruptError{Kind: "ref", Object: string(name), Reason: err.Error()}
		}
		out = append(out, Ref{name, h})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	return out, nil
}
