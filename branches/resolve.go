package branches

import (
	"context"
	"errors"
)

// Resolver tells sandbox names from others; the store knows ids only.
type Resolver interface {
	SandboxID(name string) (id string, ok bool)
}

// Resolved is what an expression names.
type Resolved struct {
	Commit Hash
	// Branch is set when the expression is exactly a branch, so that checking
	// it out attaches HEAD.
	Branch string
	// Sandbox is the sandbox id when the base of the expression is a sandbox.
	Sandbox string
}

// Resolve finds the commit an expression names. r may be nil.
//
//	expr   = base *( "~" [n] | "^" [n] )
//	base   = NAME | NAME "@{" n "}" | "branch/" NAME | "tag/" NAME | "sandbox/" NAME | id
//
// A bare NAME is looked for as a branch, then a tag, then a sandbox (its HEAD),
// then an id or a unique prefix of one (at least 4 hex digits). NAME@{n} is the
// n-th entry of a sandbox's reflog. ~n goes n first parents back, ^n to the
// n-th parent (^0 is the commit itself).
//
// Errors: ErrInvalidRef for what cannot be parsed, ErrNotFound, ErrAmbiguous.
func (s *Store) Resolve(ctx context.Context, expr string, r Resolver) (Resolved, error) {
	return Resolved{}, errors.ErrUnsupported
}
