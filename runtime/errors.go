package runtime

import (
	"errors"
	"fmt"
)

// Sentinels a caller branches on; `errors.Is` finds them in every error this
// package returns for that cause. cmd/sietch and the REST server each map them
// once, to exit codes and statuses.
var (
	ErrUsage     = errors.New("invalid request")
	ErrNotFound  = errors.New("not found")
	ErrBusy      = errors.New("busy")           // in use, locked, moved, exists
	ErrCorrupt   = errors.New("corrupt")        // stored data is damaged
	ErrHost      = errors.New("host not ready") // missing tool, no root, no space
	ErrState     = errors.New("wrong state")    // e.g. exec on a stopped sandbox
	ErrNotActive = errors.New("sandbox is not running")
)

// Error is an error with the next step for who reads it.
type Error struct {
	Kind    error  // one of the sentinels above, or nil
	Message string // thing and reason
	Hint    string // the next step; may be empty
	Err     error  // cause; may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap lets errors.Is find both the kind and the cause.
func (e *Error) Unwrap() []error {
	var list []error
	if e.Kind != nil {
		list = append(list, e.Kind)
	}
	if e.Err != nil {
		list = append(list, e.Err)
	}
	return list
}

// Hint returns the next step that err carries, or "". Errors of the packages
// beneath carry theirs in a method.
func Hint(err error) string {
	switch e := err.(type) {
	case nil:
		return ""
	case *Error:
		if e.Hint != "" {
			return e.Hint
		}
	case interface{ Hint() string }:
		if h := e.Hint(); h != "" {
			return h
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return Hint(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if h := Hint(inner); h != "" {
				return h
			}
		}
	}
	return ""
}

func notFound(hint, format string, args ...any) error {
	return &Error{Kind: ErrNotFound, Message: fmt.Sprintf(format, args...), Hint: hint}
}

func usage(hint, format string, args ...any) error {
	return &Error{Kind: ErrUsage, Message: fmt.Sprintf(format, args...), Hint: hint}
}

func busy(hint, format string, args ...any) error {
	return &Error{Kind: ErrBusy, Message: fmt.Sprintf(format, args...), Hint: hint}
}

func wrongState(hint, format string, args ...any) error {
	return &Error{Kind: ErrState, Message: fmt.Sprintf(format, args...), Hint: hint}
}
