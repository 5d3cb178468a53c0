package branches

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	// Hidden is the branch or tag that has the sandbox's name and is elsewhere.
	Hidden RefName
}

const (
	minPrefixDigits = 4
	maxExprBytes    = 512
	maxSteps        = 1 << 20 // of one ~n

	sandboxPrefix = "sandbox/"
)

// expression is a parsed REF.
type expression struct {
	base  string
	entry int // n of @{n}; -1 without
	steps []step
}

// step is ~n or ^n.
type step struct {
	op byte
	n  int
}

// Resolve finds the commit an expression names. r may be nil.
//
//	expr = base *( "~" [n] | "^" [n] )
//	base = NAME | NAME "@{" n "}" | "branch/" NAME | "tag/" NAME | "sandbox/" NAME | id
//
// A bare NAME is looked for as a sandbox (its HEAD), then a branch, then a tag,
// then an id or a unique prefix of one (at least 4 hex digits); that of a sandbox
// is a branch too where one of that name is at its HEAD. NAME@{n} is the n-th
// entry of a sandbox's reflog. ~n goes n first parents back, ^n to the n-th
// parent (^0 is the commit itself); without a number both mean 1.
//
// Errors: ErrInvalidRef for what cannot be parsed, ErrNotFound, ErrAmbiguous. For
// a sandbox without a commit, Sandbox and Hidden are set beside ErrNotFound.
func (s *Store) Resolve(ctx context.Context, expr string, r Resolver) (Resolved, error) {
	end, err := s.begin()
	if err != nil {
		return Resolved{}, err
	}
	defer end()
	e, err := parseExpression(expr)
	if err != nil {
		return Resolved{}, err
	}
	v := s.index.view()
	defer v.discard()
	res, err := v.resolveBase(e, r)
	if err != nil {
		return res, unresolved(expr, err)
	}
	if len(e.steps) > 0 {
		res.Branch = ""
	}
	for _, st := range e.steps {
		if res.Commit, err = v.walk(ctx, res.Commit, st); err != nil {
			return Resolved{}, unresolved(expr, err)
		}
	}
	// A ref always names a commit that exists; an id typed in full may not.
	ok, err := v.has(hashKey(tableCommit, res.Commit))
	if err == nil && !ok {
		err = missing("there is no commit of that id")
	}
	if err != nil {
		return Resolved{}, unresolved(expr, err)
	}
	return res, nil
}

func unresolved(expr string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%q names no commit: %w", expr, err)
	}
	return fmt.Errorf("resolve %s: %w", expr, err)
}

func parents(n int) string {
	switch n {
	case 0:
		return "no parent"
	case 1:
		return "1 parent"
	}
	return fmt.Sprintf("%d parents", n)
}

// parseExpression checks the form of a REF; whether it exists is seen later.
func parseExpression(expr string) (expression, error) {
	bad := func(why string) (expression, error) {
		shown := expr
		if len(shown) > 80 {
			shown = shown[:80] + "…"
		}
		return expression{}, fmt.Errorf("ref %q is not allowed: %w", shown, invalid(why))
	}
	if len(expr) > maxExprBytes {
		return bad("too long")
	}
	e := expression{entry: -1}
	rest := ""
	if i := strings.IndexAny(expr, "~^@"); i >= 0 {
		e.base, rest = expr[:i], expr[i:]
	} else {
		e.base = expr
	}
	if err := validBase(e.base); err != nil {
		return bad(err.Error())
	}
	if after, ok := strings.CutPrefix(rest, "@"); ok {
		inner, tail, closed := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		if !strings.HasPrefix(after, "{") || !closed {
			return bad(`"@" is followed by {n}`)
		}
		n, ok := parseCount(inner)
		if !ok {
			return bad("the number in @{n} is not one")
		}
		e.entry, rest = n, tail
	}
	for rest != "" {
		op := rest[0]
		if op != '~' && op != '^' {
			return bad(`only "~n" and "^n" may follow`)
		}
		rest = rest[1:]
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		st := step{op: op, n: 1}
		if digits > 0 {
			n, ok := parseCount(rest[:digits])
			if !ok {
				return bad("number is too large")
			}
			st.n = n
		}
		e.steps = append(e.steps, st)
		rest = rest[digits:]
	}
	return e, nil
}

func parseCount(s string) (int, bool) {
	if s == "" || strings.TrimLeft(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n <= maxSteps
}

func validBase(base string) error {
	if len(base) == 2*HashBytes && isLowerHex(base) {
		return nil
	}
	name := base
	for _, prefix := range []string{branchPrefix, tagPrefix, sandboxPrefix} {
		if n, ok := strings.CutPrefix(base, prefix); ok {
			name = n
			break
		}
	}
	return ValidateName(name)
}

func (v *view) resolveBase(e expression, r Resolver) (Resolved, error) {
	sandboxID := func(name string) (string, bool) {
		if r == nil {
			return "", false
		}
		return r.SandboxID(name)
	}
	if e.entry >= 0 {
		name := strings.TrimPrefix(e.base, sandboxPrefix)
		id, ok := sandboxID(name)
		if !ok {
			return Resolved{}, missing("no sandbox is called " + name)
		}
		log, err := v.reflog(id)
		if err != nil {
			return Resolved{}, err
		}
		if e.entry >= len(log) {
			return Resolved{}, missing(fmt.Sprintf("the reflog has %d, counted from 0", len(log)))
		}
		return Resolved{Commit: log[e.entry].Commit, Sandbox: id}, nil
	}
	if full := RefName(e.base); strings.Contains(e.base, "/") && !strings.HasPrefix(e.base, sandboxPrefix) {
		h, err := v.ref(full)
		if err == nil && h.IsZero() {
			err = missing("there is no " + full.String())
		}
		branch, _ := full.Branch()
		return Resolved{Commit: h, Branch: branch}, err
	}
	name, onlySandbox := strings.CutPrefix(e.base, sandboxPrefix)
	var branch, tag Hash
	if !onlySandbox {
		var err error
		if branch, err = v.ref(BranchRef(name)); err != nil {
			return Resolved{}, err
		}
		if tag, err = v.ref(TagRef(name)); err != nil {
			return Resolved{}, err
		}
	}
	if id, ok := sandboxID(name); ok {
		st, ok, err := v.head(id)
		if err != nil {
			return Resolved{}, err
		}
		res := Resolved{Commit: st.Commit, Sandbox: id}
		switch {
		case branch == st.Commit && !branch.IsZero():
			res.Branch = name
		case !branch.IsZero():
			res.Hidden = BranchRef(name)
		case !tag.IsZero() && tag != st.Commit:
			res.Hidden = TagRef(name)
		}
		if !ok || st.Commit.IsZero() {
			err = missing("sandbox " + name + " has no commit yet")
		}
		return res, err
	}
	if !branch.IsZero() {
		return Resolved{Commit: branch, Branch: name}, nil
	}
	if !tag.IsZero() {
		return Resolved{Commit: tag}, nil
	}
	if !onlySandbox && isLowerHex(name) && len(name) >= minPrefixDigits {
		h, err := v.expandPrefix(name)
		return Resolved{Commit: h}, err
	}
	if onlySandbox {
		return Resolved{}, missing("no sandbox is called " + name)
	}
	return Resolved{}, missing("it is no sandbox, branch, tag or commit id")
}

// expandPrefix finds the one commit whose id begins with the given digits.
func (v *view) expandPrefix(digits string) (Hash, error) {
	whole, err := hex.DecodeString(digits[:len(digits)/2*2])
	if err != nil {
		return Hash{}, err
	}
	var found []Hash
	err = v.scanKeys(append([]byte{tableCommit}, whole...), func(key []byte) error {
		h, err := keyHash(bytes.Clone(key))
		if err != nil {
			return &CorruptError{Kind: "commit", Object: fmt.Sprintf("%x", key), Reason: err.Error()}
		}
		if strings.HasPrefix(h.String(), digits) {
			if found = append(found, h); len(found) > 8 {
				return errStop
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return Hash{}, err
	case len(found) == 0:
		return Hash{}, missing("it is no sandbox, branch, tag or commit id")
	case len(found) > 1:
		return Hash{}, &AmbiguousError{Prefix: digits, Candidates: found[:min(len(found), 8)]}
	}
	return found[0], nil
}

func (v *view) walk(ctx context.Context, h Hash, st step) (Hash, error) {
	times, parent := 1, st.n
	if st.op == '~' {
		times, parent = st.n, 1
	}
	if parent == 0 {
		return h, nil
	}
	for range times {
		if err := ctx.Err(); err != nil {
			return Hash{}, err
		}
		c, _, err := v.commit(h)
		if err != nil {
			return Hash{}, err
		}
		if len(c.Parents) < parent {
			return Hash{}, missing(fmt.Sprintf("commit %s has %s", h.Short(), parents(len(c.Parents))))
		}
		h = c.Parents[parent-1]
	}
	return h, nil
}
