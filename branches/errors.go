package branches

import (
	"errors"
	"fmt"
)

// Errors a caller branches on, with errors.Is.
var (
	// ErrNotFound: no such commit, ref, sandbox, blob or reflog entry.
	ErrNotFound = errors.New("not found")
	// ErrRefMoved: a ref was not where the caller said it was; see [RefError].
	ErrRefMoved = errors.New("ref has moved")
	// ErrCheckedOut: a branch is the HEAD of a sandbox; see [RefError].
	ErrCheckedOut = errors.New("branch is checked out")
	// ErrLocked: another process has the store open; see [LockError].
	ErrLocked = errors.New("store is in use by another process")
	// ErrCorrupt: stored bytes are missing or not what was written; see [CorruptError].
	ErrCorrupt = errors.New("store is corrupt")
	// ErrInvalidRef: a name or expression that no ref can have.
	ErrInvalidRef = errors.New("invalid ref")
	// ErrAmbiguous: a prefix that fits several commits; see [AmbiguousError].
	ErrAmbiguous = errors.New("ambiguous")
	// ErrFormat: the store was written by a version this one cannot read.
	ErrFormat = errors.New("store format is not supported")
	// ErrNoSpace: too little free space to write without risk. Nothing was
	// changed. The cause is always syscall.ENOSPC too.
	ErrNoSpace = errors.New("not enough free space")
	// ErrClosed: the store or writer was closed.
	ErrClosed = errors.New("already closed")
)

// RefError says which ref stood in the way. It wraps ErrRefMoved, ErrNotFound,
// ErrCheckedOut or ErrInvalidRef.
type RefError struct {
	Name RefName
	// Want and Have are the expected and the found commit, for ErrRefMoved.
	Want, Have Hash
	// Sandbox has the branch checked out, for ErrCheckedOut.
	Sandbox string
	Err     error
}

func (e *RefError) Error() string {
	switch {
	case errors.Is(e.Err, ErrRefMoved) && e.Want.IsZero():
		return fmt.Sprintf("%s exists already, at %s", e.Name, e.Have.Short())
	case errors.Is(e.Err, ErrRefMoved) && e.Have.IsZero():
		return fmt.Sprintf("%s does not exist any more, expected it at %s", e.Name, e.Want.Short())
	case errors.Is(e.Err, ErrRefMoved):
		return fmt.Sprintf("%s has moved to %s, expected it at %s", e.Name, e.Have.Short(), e.Want.Short())
	case errors.Is(e.Err, ErrCheckedOut):
		return fmt.Sprintf("%s is checked out in sandbox %s", e.Name, e.Sandbox)
	}
	return fmt.Sprintf("%s: %v", e.Name, e.Err)
}

func (e *RefError) Unwrap() error { return e.Err }

// LockError says who has the store open. It wraps ErrLocked.
type LockError struct {
	Dir     string
	PID     int    // 0 when the holder did not say
	Command string // the holder's command line
}

func (e *LockError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("open store %s: %v", e.Dir, ErrLocked)
	}
	return fmt.Sprintf("open store %s: %v: pid %d (%s)", e.Dir, ErrLocked, e.PID, e.Command)
}

func (e *LockError) Unwrap() error { return ErrLocked }

// CorruptError names the object that is missing or wrong. It wraps ErrCorrupt.
type CorruptError struct {
	Kind   string // "chunk", "node", "commit", "blob", "pack", "ref", "head"
	Object string // hash or name
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s %s: %s", ErrCorrupt, e.Kind, e.Object, e.Reason)
}

func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// AmbiguousError lists the commits a prefix fits. It wraps ErrAmbiguous.
type AmbiguousError struct {
	Prefix     string
	Candidates []Hash // at most eight
}

func (e *AmbiguousError) Error() string {
	s := fmt.Sprintf("commit id %s is %v:", e.Prefix, ErrAmbiguous)
	for _, c := range e.Candidates {
		s += " " + c.Short()
	}
	return s
}

func (e *AmbiguousError) Unwrap() error { return ErrAmbiguous }

// invalid and missing are why a name or expression names nothing, in words that
// stand by themselves.
type (
	invalid string
	missing string
)

func (e invalid) Error() string { return string(e) }
func (e invalid) Unwrap() error { return ErrInvalidRef }
func (e missing) Error() string { return string(e) }
func (e missing) Unwrap() error { return ErrNotFound }
