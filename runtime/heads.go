package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sietch-dev/sietch/branches"
)

// newHead says what sandboxes that come to be have checked out.
type newHead struct {
	commit branches.Hash
	branch string // attach to this existing branch
	unborn bool   // a branch named like the sandbox that the first commit makes
	own    bool   // a new branch at commit, named like the sandbox
	action string // for the reflog
}

// giveHeads puts the HEADs of new sandboxes into the store, in one transaction,
// and into their records.
func (e *Local) giveHeads(ctx context.Context, s *branches.Store, recs []*record, h newHead) error {
	heads, err := s.Heads(ctx)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, st := range heads {
		used[st.Head.Branch] = true
	}
	var tx branches.Update
	for _, r := range recs {
		head := branches.Head{Branch: h.branch}
		switch {
		case h.unborn:
			if head.Branch, err = freeBranch(ctx, s, r.Name, used); err != nil {
				return err
			}
		case h.own:
			if head.Branch, err = freeBranch(ctx, s, r.Name, used); err != nil {
				return err
			}
			tx.Refs = append(tx.Refs, branches.RefUpdate{Name: branches.BranchRef(head.Branch), New: h.commit})
		case h.branch == "":
			head.Commit = h.commit
		}
		used[head.Branch] = true
		hu := branches.HeadUpdate{Sandbox: r.ID, Head: head, Commit: h.commit}
		if !h.commit.IsZero() {
			hu.Reflog = []branches.ReflogEntry{{Commit: h.commit, Action: h.action, Message: "as " + r.Name}}
		}
		tx.Heads = append(tx.Heads, hu)
		r.Head = recordHead{Branch: head.Branch, Commit: h.commit}
	}
	return s.Update(ctx, tx)
}

// refuseTaken is the error for a new branch or tag whose name a branch or tag
// has, or is about to get: one name would mean two commits.
func (e *Local) refuseTaken(ctx context.Context, s *branches.Store, name string) error {
	for _, kind := range []RefKind{BranchRef, TagRef} {
		_, err := s.Ref(ctx, kind.ref(name))
		if err == nil {
			return busy(fmt.Sprintf("choose another name, or remove it first: sietch %s -d %s", kind, name), "%s %s exists already", kind, name)
		}
		if !errors.Is(err, branches.ErrNotFound) {
			return err
		}
	}
	_, who, err := e.checkedOut(ctx, s, name)
	if err == nil && who != "" {
		err = busy("choose another name, or commit in that sandbox", "branch %s is about to be made by the first commit of sandbox %s", name, who)
	}
	return err
}

// freeBranch is name, or name-2, name-3 … when a branch or tag is called so or
// some sandbox is about to make it: a branch is checked out in one sandbox at most.
func freeBranch(ctx context.Context, s *branches.Store, name string, used map[string]bool) (string, error) {
	for i := 1; ; i++ {
		try := name
		if i > 1 {
			suffix := fmt.Sprintf("-%d", i)
			try = name[:min(len(name), branches.MaxNameBytes-len(suffix))] + suffix
		}
		if used[try] {
			continue
		}
		_, err := s.Ref(ctx, branches.BranchRef(try))
		if errors.Is(err, branches.ErrNotFound) {
			_, err = s.Ref(ctx, branches.TagRef(try))
		}
		if errors.Is(err, branches.ErrNotFound) {
			return try, nil
		}
		if err != nil {
			return "", err
		}
	}
}

// forgetHead removes what the store knows of a sandbox; its commits stay as
// long as a branch or tag leads to them.
func forgetHead(ctx context.Context, s *branches.Store, id string) error {
	return s.Update(ctx, branches.Update{Heads: []branches.HeadUpdate{{Sandbox: id, Delete: true}}})
}

// checkedOut finds the sandbox that has a branch checked out, "" when none has.
func (e *Local) checkedOut(ctx context.Context, s *branches.Store, branch string) (id, name string, err error) {
	heads, err := s.Heads(ctx)
	if err != nil {
		return "", "", err
	}
	for id, st := range heads {
		if st.Head.Branch == branch {
			r, err := e.load(id)
			if err != nil {
				continue // being made, or a leftover that gc removes
			}
			return id, r.Name, nil
		}
	}
	return "", "", nil
}

// sandboxNames resolves sandbox names for the store.
type sandboxNames struct{ l layout }

func (n sandboxNames) SandboxID(name string) (string, bool) {
	r, err := n.l.find(name)
	if err != nil || r.Name != name {
		return "", false
	}
	return r.ID, true
}

// resolve finds the commit that a REF names.
func (e *Local) resolve(ctx context.Context, s *branches.Store, ref string) (*branches.Commit, branches.Resolved, error) {
	res, err := e.locate(ctx, s, ref)
	if err != nil {
		return nil, res, err
	}
	c, err := s.Commit(ctx, res.Commit)
	if err != nil {
		return nil, res, refError(err)
	}
	return c, res, nil
}

// locate finds out what a REF names, and says so where a branch or tag that is
// elsewhere may have been meant.
func (e *Local) locate(ctx context.Context, s *branches.Store, ref string) (branches.Resolved, error) {
	res, err := s.Resolve(ctx, ref, sandboxNames{e.layout})
	hidden := ""
	if res.Hidden != "" {
		kind, _, _ := strings.Cut(string(res.Hidden), "/")
		hidden = fmt.Sprintf("for the %s of that name write %s", kind, string(res.Hidden))
	}
	if err != nil {
		err = refError(err)
		var known *Error
		if errors.As(err, &known) && hidden != "" {
			known.Hint = hidden
		}
		return res, err
	}
	if hidden != "" {
		e.remark(fmt.Sprintf("%s goes by the HEAD of the sandbox; %s", ref, hidden))
	}
	return res, nil
}

// refError gives an error of the store about a REF, which says all there is to
// say, its kind and the next step.
func refError(err error) error {
	switch {
	case errors.Is(err, branches.ErrCorrupt):
		return err
	case errors.Is(err, branches.ErrNotFound):
		return &Error{Kind: errors.Join(ErrNotFound, err), Message: err.Error(), Hint: "sietch log, sietch branch and sietch tag list what there is"}
	case errors.Is(err, branches.ErrInvalidRef):
		return &Error{Kind: errors.Join(ErrUsage, err), Message: err.Error(), Hint: "a ref is a sandbox, branch, tag, id, REF~n, REF^n or NAME@{n}"}
	}
	return err
}
