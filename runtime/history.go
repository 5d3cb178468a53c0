package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sietch-dev/sietch/branches"
)

// Log lists commits, newest first: those that Ref reaches, or all that any
// branch, tag or HEAD does.
func (e *Local) Log(ctx context.Context, q LogRequest) ([]Commit, error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	list := []Commit{}
	if !exists(e.store()) && q.Ref == "" {
		return list, nil
	}
	if err := e.prepare(); err != nil {
		return nil, err
	}
	err := e.withStore(ctx, func(s *branches.Store) error {
		names, from, err := e.pointers(ctx, s)
		if err != nil {
			return err
		}
		if q.Ref != "" {
			at, err := e.logFrom(ctx, s, q.Ref)
			if err != nil || at.IsZero() {
				return err
			}
			from = []branches.Hash{at}
		}
		commits, err := s.Log(ctx, from, q.N)
		if err != nil {
			return err
		}
		for _, c := range commits {
			v := commitView(c)
			v.Refs = append(v.Refs, names[c.ID]...)
			list = append(list, v)
		}
		return nil
	})
	return list, err
}

// logFrom finds where a history begins. That of a sandbox without commits is
// empty.
func (e *Local) logFrom(ctx context.Context, s *branches.Store, ref string) (branches.Hash, error) {
	res, err := e.locate(ctx, s, ref)
	if errors.Is(err, branches.ErrNotFound) && res.Sandbox != "" && !strings.ContainsAny(ref, "~^@") {
		return branches.Hash{}, nil
	}
	return res.Commit, err
}

// Show returns one commit.
func (e *Local) Show(ctx context.Context, ref string) (Commit, error) {
	if ref == "" {
		return Commit{}, usage("", "no ref given")
	}
	var v Commit
	err := e.lookInStore(ctx, func(s *branches.Store) error {
		c, _, err := e.resolve(ctx, s, ref)
		if err != nil {
			return err
		}
		names, _, err := e.pointers(ctx, s)
		if err != nil {
			return err
		}
		v = commitView(c)
		v.Refs = append(v.Refs, names[c.ID]...)
		return nil
	})
	return v, err
}

// Reflog lists where a sandbox's HEAD was, the present first.
func (e *Local) Reflog(ctx context.Context, name string) ([]ReflogEntry, error) {
	r, err := e.find(name)
	if err != nil {
		return nil, err
	}
	list := []ReflogEntry{}
	err = e.lookInStore(ctx, func(s *branches.Store) error {
		entries, err := s.Reflog(ctx, r.ID)
		if err != nil && !errors.Is(err, branches.ErrNotFound) {
			return err
		}
		for i, it := range entries {
			list = append(list, ReflogEntry{Index: i, Commit: it.Commit.String(), Action: it.Action, Message: it.Message, Time: it.Time})
		}
		return nil
	})
	return list, err
}

// lookInStore is withStore for verbs that change nothing: a data directory that
// holds no store yet holds no commit.
func (e *Local) lookInStore(ctx context.Context, fn func(*branches.Store) error) error {
	if err := e.readable(); err != nil {
		return err
	}
	if err := e.prepare(); err != nil {
		return err
	}
	return e.withStore(ctx, fn)
}

// pointers says which names lead to which commits, and all those commits.
func (e *Local) pointers(ctx context.Context, s *branches.Store) (map[branches.Hash][]string, []branches.Hash, error) {
	names := map[branches.Hash][]string{}
	heads, err := s.Heads(ctx)
	if err != nil {
		return nil, nil, err
	}
	for id, h := range heads {
		if r, err := e.load(id); err == nil && !h.Commit.IsZero() {
			at := r.Name + "@"
			if h.Head.Branch != "" {
				at += " -> " + h.Head.Branch
			}
			names[h.Commit] = append(names[h.Commit], at)
		}
	}
	bs, err := s.Branches(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, b := range bs {
		name, _ := b.Name.Branch()
		names[b.Commit] = append(names[b.Commit], name)
	}
	ts, err := s.Tags(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range ts {
		name, _ := t.Name.Tag()
		names[t.Commit] = append(names[t.Commit], "tag: "+name)
	}
	var from []branches.Hash
	for id, list := range names {
		slices.Sort(list)
		from = append(from, id)
	}
	slices.SortFunc(from, func(a, b branches.Hash) int { return bytes.Compare(a[:], b[:]) })
	return names, from, nil
}

func (k RefKind) ref(name string) branches.RefName {
	if k == TagRef {
		return branches.TagRef(name)
	}
	return branches.BranchRef(name)
}

// ListRefs lists branches or tags by name.
func (e *Local) ListRefs(ctx context.Context, kind RefKind) ([]Ref, error) {
	list := []Ref{}
	err := e.lookInStore(ctx, func(s *branches.Store) error {
		if kind == TagRef {
			ts, err := s.Tags(ctx)
			for _, t := range ts {
				name, _ := t.Name.Tag()
				list = append(list, Ref{Name: name, Commit: t.Commit.String()})
			}
			return err
		}
		bs, err := s.Branches(ctx)
		if err != nil {
			return err
		}
		heads, err := s.Heads(ctx)
		if err != nil {
			return err
		}
		where := map[string]string{}
		for id, h := range heads {
			if r, err := e.load(id); err == nil {
				where[h.Head.Branch] = r.Name
			}
		}
		for _, b := range bs {
			name, _ := b.Name.Branch()
			list = append(list, Ref{Name: name, Commit: b.Commit.String(), Sandbox: where[name]})
		}
		return nil
	})
	return list, err
}

// CreateRef makes a branch or tag at a REF; neither a branch nor a tag may have
// its name.
func (e *Local) CreateRef(ctx context.Context, kind RefKind, name, ref string) (Ref, error) {
	if err := ValidateName(string(kind), name); err != nil {
		return Ref{}, err
	}
	if ref == "" {
		return Ref{}, usage("", "no ref given")
	}
	if err := e.prepare(); err != nil {
		return Ref{}, err
	}
	out := Ref{Name: name}
	err := e.withStore(ctx, func(s *branches.Store) error {
		c, _, err := e.resolve(ctx, s, ref)
		if err != nil {
			return err
		}
		if err := e.refuseTaken(ctx, s, name); err != nil {
			return err
		}
		out.Commit = c.ID.String()
		return s.Update(ctx, branches.Update{Refs: []branches.RefUpdate{{Name: kind.ref(name), New: c.ID}}})
	})
	if err == nil {
		e.emit(Event{Type: string(kind) + ".create", Ref: name, Commit: out.Commit})
	}
	return out, err
}

// DeleteRef removes a branch or tag; a branch that is checked out stays.
func (e *Local) DeleteRef(ctx context.Context, kind RefKind, name string) error {
	if err := ValidateName(string(kind), name); err != nil {
		return err
	}
	var was branches.Hash
	err := e.lookInStore(ctx, func(s *branches.Store) error {
		at, err := s.Ref(ctx, kind.ref(name))
		if errors.Is(err, branches.ErrNotFound) {
			return notFound(fmt.Sprintf("sietch %s lists them", kind), "%s %s does not exist", kind, name)
		}
		if err != nil {
			return err
		}
		if kind == BranchRef {
			if _, who, err := e.checkedOut(ctx, s, name); err != nil {
				return err
			} else if who != "" {
				return busy("check something else out there first", "branch %s is checked out in sandbox %s", name, who)
			}
		}
		was = at.Commit
		return s.Update(ctx, branches.Update{Refs: []branches.RefUpdate{{Name: kind.ref(name), Old: at.Commit}}})
	})
	if err == nil {
		e.emit(Event{Type: string(kind) + ".delete", Ref: name, Commit: was.String()})
	}
	return err
}

// RenameBranch gives a branch another name; a sandbox that has it checked out
// follows.
func (e *Local) RenameBranch(ctx context.Context, from, to string) error {
	if err := errors.Join(ValidateName("branch", from), ValidateName("branch", to)); err != nil {
		return err
	}
	var moved string
	var commit branches.Hash
	err := e.lookInStore(ctx, func(s *branches.Store) error {
		at, err := s.Ref(ctx, branches.BranchRef(from))
		if errors.Is(err, branches.ErrNotFound) {
			return notFound("sietch branch lists them", "branch %s does not exist", from)
		}
		if err != nil {
			return err
		}
		if err := e.refuseTaken(ctx, s, to); err != nil {
			return err
		}
		tx := branches.Update{Refs: []branches.RefUpdate{
			{Name: branches.BranchRef(from), Old: at.Commit},
			{Name: branches.BranchRef(to), New: at.Commit},
		}}
		id, _, err := e.checkedOut(ctx, s, from)
		if err != nil {
			return err
		}
		commit = at.Commit
		if moved = id; id != "" {
			tx.Heads = []branches.HeadUpdate{{Sandbox: id, Head: branches.Head{Branch: to}, Commit: at.Commit}}
		}
		return s.Update(ctx, tx)
	})
	if err == nil {
		e.emit(Event{Type: "branch.rename", Ref: to, Commit: commit.String()})
	}
	if err != nil || moved == "" {
		return err
	}
	r, err := e.load(moved)
	if err != nil {
		return err
	}
	r.Head.Branch = to
	return e.save(r)
}
