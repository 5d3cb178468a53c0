package branches

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

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
	// Force moves or deletes it wherever it is; Old is not looked at.
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

// maxSandboxID bounds the id of a sandbox, which is part of keys.
const maxSandboxID = 128

// maxForgotten is how many reflog entries of a deleted HEAD go in its own
// transaction. Entries without a HEAD mean nothing, and gc takes the rest.
const maxForgotten = 2000

// Update applies tx in one transaction. ErrRefMoved when a ref is not at its
// Old, ErrCheckedOut when two sandboxes would have one branch checked out or a
// checked-out branch would be deleted, ErrNotFound when a commit named in it
// does not exist.
func (s *Store) Update(ctx context.Context, tx Update) error {
	end, err := s.begin()
	if err != nil {
		return err
	}
	defer end()
	if err := tx.validate(false); err != nil {
		return err
	}
	if tx.forgets() {
		err = useReserve(s.dir) // it makes room in the end
	} else {
		err = s.needSpace(64 << 10)
	}
	if err != nil {
		return err
	}
	s.update.Lock()
	defer s.update.Unlock()
	s.leases.mu.RLock()
	defer s.leases.mu.RUnlock()
	err = s.index.atomically("update", func(ch *change) error { return s.apply(ch, tx, Hash{}) })
	if err != nil {
		return fmt.Errorf("update refs: %w", err)
	}
	return nil
}

// forgets says whether tx does nothing but remove HEADs.
func (tx Update) forgets() bool {
	return len(tx.Refs) == 0 && !slices.ContainsFunc(tx.Heads, func(u HeadUpdate) bool { return !u.Delete })
}

// validate reports everything that is wrong with tx in itself. self says
// whether there is a commit for Self to stand for.
func (tx Update) validate(self bool) error {
	var errs []error
	hash := func(what string, h Hash) {
		if h == Self && !self {
			errs = append(errs, fmt.Errorf("%s: no commit is being written for Self to stand for", what))
		}
	}
	refs := map[RefName]bool{}
	for _, u := range tx.Refs {
		if err := u.Name.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		if refs[u.Name] {
			errs = append(errs, fmt.Errorf("%s: there twice", u.Name))
		}
		refs[u.Name] = true
		if u.Old.IsZero() && u.New.IsZero() && !u.Force {
			errs = append(errs, fmt.Errorf("%s: neither an old nor a new commit", u.Name))
		}
		if u.Old == Self {
			errs = append(errs, fmt.Errorf("%s: Self as the old commit", u.Name))
		}
		hash(u.Name.String(), u.New)
	}
	heads := map[string]bool{}
	for _, u := range tx.Heads {
		what := "HEAD of sandbox " + u.Sandbox
		if err := validSandboxID(u.Sandbox); err != nil {
			errs = append(errs, err)
			continue
		}
		if heads[u.Sandbox] {
			errs = append(errs, fmt.Errorf("%s: there twice", what))
		}
		heads[u.Sandbox] = true
		if u.Delete {
			continue
		}
		switch {
		case u.Head.Branch != "" && !u.Head.Commit.IsZero():
			errs = append(errs, fmt.Errorf("%s: both on a branch and detached", what))
		case u.Head.Branch != "":
			if err := ValidateName(u.Head.Branch); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
			}
		case u.Head.Commit.IsZero():
			errs = append(errs, fmt.Errorf("%s: neither a branch nor a commit", what))
		case !u.Commit.IsZero() && u.Commit != u.Head.Commit:
			errs = append(errs, fmt.Errorf("%s: detached at %s, but points to %s", what, u.Head.Commit.Short(), u.Commit.Short()))
		}
		hash(what, u.Head.Commit)
		hash(what, u.Commit)
		for _, e := range u.Reflog {
			if e.Commit.IsZero() {
				errs = append(errs, fmt.Errorf("%s: reflog entry without a commit", what))
			}
			if len(e.Action)+len(e.Message) > maxMessageBytes || !utf8.ValidString(e.Action) || !utf8.ValidString(e.Message) {
				errs = append(errs, fmt.Errorf("%s: reflog entry is too long or not valid UTF-8", what))
			}
			hash(what, e.Commit)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("update is not valid: %w", err)
	}
	return nil
}

func (n RefName) validate() error {
	name, ok := n.Branch()
	if !ok {
		name, ok = n.Tag()
	}
	if !ok {
		return fmt.Errorf("ref %q: %w: neither a branch nor a tag", string(n), ErrInvalidRef)
	}
	if err := ValidateName(name); err != nil {
		return fmt.Errorf("ref %q: %w", string(n), err)
	}
	return nil
}

func validSandboxID(id string) error {
	if id == "" || len(id) > maxSandboxID || strings.IndexByte(id, 0) >= 0 || !utf8.ValidString(id) {
		return fmt.Errorf("sandbox id %q: %w", id, ErrInvalidRef)
	}
	return nil
}

// apply makes the changes of tx in a transaction. The caller holds the update
// lock and the leases for reading.
func (s *Store) apply(ch *change, tx Update, self Hash) error {
	now := s.now()
	resolve := func(h Hash) Hash {
		if h == Self {
			return self
		}
		return h
	}
	for _, u := range tx.Refs {
		u.New = resolve(u.New)
		if err := ch.moveRef(u); err != nil {
			return err
		}
	}
	for _, u := range tx.Heads {
		u.Head.Commit, u.Commit = resolve(u.Head.Commit), resolve(u.Commit)
		for i := range u.Reflog {
			e := u.Reflog[i]
			e.Commit = resolve(e.Commit)
			if e.Time.IsZero() {
				e.Time = now
			}
			if err := ch.appendReflog(u.Sandbox, e); err != nil {
				return err
			}
		}
		if err := ch.setHead(u); err != nil {
			return err
		}
	}
	return ch.checkHeads(tx)
}

// needCommit fails unless the commit exists.
func (c *change) needCommit(h Hash) error {
	ok, err := c.has(hashKey(tableCommit, h))
	if err == nil && !ok {
		err = fmt.Errorf("commit %s: %w", h.Short(), ErrNotFound)
	}
	return err
}

func (c *change) moveRef(u RefUpdate) error {
	have, err := c.ref(u.Name)
	if err != nil {
		return err
	}
	if !u.Force && have != u.Old {
		return &RefError{Name: u.Name, Want: u.Old, Have: have, Err: ErrRefMoved}
	}
	if u.New.IsZero() {
		if have.IsZero() {
			return &RefError{Name: u.Name, Err: ErrNotFound}
		}
		return c.delete(refKey(u.Name))
	}
	if err := c.needCommit(u.New); err != nil {
		return fmt.Errorf("%s: %w", u.Name, err)
	}
	return c.set(refKey(u.Name), encodeRef(u.New))
}

func (c *change) appendReflog(sandbox string, e ReflogEntry) error {
	if err := c.needCommit(e.Commit); err != nil {
		return fmt.Errorf("reflog of sandbox %s: %w", sandbox, err)
	}
	val, err := encodeReflog(e)
	if err != nil {
		return fmt.Errorf("encode reflog entry: %w", err)
	}
	prefix := reflogPrefix(sandbox)
	seq := uint64(0)
	if k := c.last(prefix); len(k) == len(prefix)+8 {
		seq = binary.BigEndian.Uint64(k[len(prefix):]) + 1
	}
	return c.set(reflogKey(sandbox, seq), val)
}

func (c *change) setHead(u HeadUpdate) error {
	if u.Delete {
		return c.deleteHead(u.Sandbox)
	}
	st := HeadState{Head: u.Head, Commit: u.Commit}
	if st.Commit.IsZero() {
		st.Commit = st.Head.Commit
		if st.Head.Branch != "" {
			var err error
			if st.Commit, err = c.ref(BranchRef(st.Head.Branch)); err != nil {
				return err
			}
		}
	}
	if !st.Commit.IsZero() {
		if err := c.needCommit(st.Commit); err != nil {
			return fmt.Errorf("HEAD of sandbox %s: %w", u.Sandbox, err)
		}
	}
	val, err := encodeHead(st)
	if err != nil {
		return fmt.Errorf("encode HEAD: %w", err)
	}
	return c.set(headKey(u.Sandbox), val)
}

func (c *change) deleteHead(sandbox string) error {
	if err := c.delete(headKey(sandbox)); err != nil {
		return err
	}
	var keys [][]byte
	err := c.scanKeys(reflogPrefix(sandbox), func(key []byte) error {
		if len(keys) == maxForgotten {
			return errStop
		}
		keys = append(keys, append([]byte(nil), key...))
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := c.delete(k); err != nil {
			return err
		}
	}
	return nil
}

// checkHeads looks at what the transaction comes to: a branch is checked out in
// one sandbox at most, and one that is checked out was not deleted.
func (c *change) checkHeads(tx Update) error {
	deleted := map[string]bool{}
	for _, u := range tx.Refs {
		if b, ok := u.Name.Branch(); ok && u.New.IsZero() {
			deleted[b] = true
		}
	}
	if len(deleted) == 0 && len(tx.Heads) == 0 {
		return nil
	}
	heads, err := c.heads()
	if err != nil {
		return err
	}
	changed := map[string]bool{}
	for _, u := range tx.Heads {
		changed[u.Sandbox] = true
	}
	holder := map[string]string{}
	for sandbox, h := range heads {
		b := h.Head.Branch
		if b == "" {
			continue
		}
		if deleted[b] {
			return &RefError{Name: BranchRef(b), Sandbox: sandbox, Err: ErrCheckedOut}
		}
		if other, ok := holder[b]; ok {
			if changed[other] { // name the one that was there before
				other = sandbox
			}
			return &RefError{Name: BranchRef(b), Sandbox: other, Err: ErrCheckedOut}
		}
		holder[b] = sandbox
	}
	return nil
}
