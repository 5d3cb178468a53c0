package branches

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// history makes small commits by name, for tests in which only the graph counts.
type history struct {
	t     testing.TB
	s     *Store
	w     *Writer
	at    time.Time
	ids   map[string]Hash
	names map[Hash]string
}

func newHistory(t testing.TB, s *Store) *history {
	return &history{t: t, s: s, w: newWriter(t, s), at: time.Unix(1700000000, 0), ids: map[string]Hash{}, names: map[Hash]string{}}
}

func (h *history) commit(name string, parents ...string) Hash {
	h.t.Helper()
	h.at = h.at.Add(time.Minute)
	return h.commitAt(name, h.at, parents...)
}

func (h *history) commitAt(name string, at time.Time, parents ...string) Hash {
	h.t.Helper()
	c := &Commit{Kind: KindDisk, Message: name, Created: at}
	for _, p := range parents {
		c.Parents = append(c.Parents, h.ids[p])
	}
	id := commit(h.t, h.w, c, Update{})
	h.ids[name], h.names[id] = id, name
	return id
}

func update(t testing.TB, s *Store, tx Update) {
	t.Helper()
	if err := s.Update(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

func TestUpdateRefs(t *testing.T) {
	s := openStore(t, Options{})
	h := newHistory(t, s)
	a, b := h.commit("a"), h.commit("b")
	main := BranchRef("main")
	update(t, s, Update{Refs: []RefUpdate{{Name: main, New: a}, {Name: TagRef("main"), New: b}}})
	for _, tt := range []struct {
		name   string
		update RefUpdate
		want   error
		detail string
	}{
		{"exists", RefUpdate{Name: main, New: b}, ErrRefMoved, "branch main exists already"},
		{"moved", RefUpdate{Name: main, Old: b, New: a}, ErrRefMoved, "expected it at " + b.Short()},
		{"gone", RefUpdate{Name: BranchRef("other"), Old: a, New: b}, ErrRefMoved, "does not exist any more"},
		{"delete missing", RefUpdate{Name: BranchRef("other"), Force: true}, ErrNotFound, "branch other"},
		{"no commit", RefUpdate{Name: main, Old: a, New: Hash{1}}, ErrNotFound, "commit 010000000000"},
		{"bad name", RefUpdate{Name: BranchRef("Main"), New: a}, ErrInvalidRef, "lower-case"},
		{"no kind", RefUpdate{Name: "main", New: a}, ErrInvalidRef, "neither a branch nor a tag"},
		{"nothing", RefUpdate{Name: main}, nil, "neither an old nor a new"},
		{"self", RefUpdate{Name: main, Old: a, New: Self}, nil, "no commit is being written"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// The good half of the transaction must not happen either.
			err := s.Update(t.Context(), Update{Refs: []RefUpdate{{Name: BranchRef("beside"), New: a}, tt.update}})
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.detail) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.detail)
			}
		})
	}
	got, err := s.Branches(t.Context())
	if diff := cmp.Diff([]Ref{{main, a}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	update(t, s, Update{Refs: []RefUpdate{{Name: main, Force: true, New: b}, {Name: TagRef("main"), Old: b}}})
	if tags, err := s.Tags(t.Context()); err != nil || len(tags) != 0 {
		t.Errorf("got tags %v, %v, want none", tags, err)
	}
	if r, err := s.Ref(t.Context(), main); err != nil || r.Commit != b {
		t.Errorf("got %v, %v, want %s", r, err, b)
	}
	var re *RefError
	if _, err := s.Ref(t.Context(), TagRef("main")); !errors.As(err, &re) || !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestHeads(t *testing.T) {
	now := newClock()
	s := openStore(t, Options{Now: now.now})
	h := newHistory(t, s)
	a, b := h.commit("a"), h.commit("b")
	update(t, s, Update{
		Refs:  []RefUpdate{{Name: BranchRef("main"), New: a}, {Name: BranchRef("free"), New: b}},
		Heads: []HeadUpdate{{Sandbox: "s1", Head: Head{Branch: "main"}, Reflog: []ReflogEntry{{Commit: a, Action: "run", Message: "x"}}}},
	})
	// Commit is taken from the branch when it is not said.
	st, err := s.Head(t.Context(), "s1")
	if diff := cmp.Diff(HeadState{Head{Branch: "main"}, a}, st); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, tt := range []struct {
		name string
		tx   Update
		want error
	}{
		{"branch in use", Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Branch: "main"}}}}, ErrCheckedOut},
		{"deleted under it", Update{Refs: []RefUpdate{{Name: BranchRef("main"), Old: a}}}, ErrCheckedOut},
		{"both", Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Branch: "x", Commit: a}}}}, nil},
		{"neither", Update{Heads: []HeadUpdate{{Sandbox: "s2"}}}, nil},
		{"no sandbox", Update{Heads: []HeadUpdate{{Head: Head{Branch: "x"}}}}, ErrInvalidRef},
		{"NUL in sandbox", Update{Heads: []HeadUpdate{{Sandbox: "a\x00b", Head: Head{Branch: "x"}}}}, ErrInvalidRef},
		{"missing commit", Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Commit: Hash{9}}}}}, ErrNotFound},
		{"missing reflog commit", Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Commit: a}, Reflog: []ReflogEntry{{Commit: Hash{9}}}}}}, ErrNotFound},
		{"elsewhere", Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Commit: a}, Commit: b}}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := s.Update(t.Context(), tt.tx)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			var re *RefError
			if tt.want == ErrCheckedOut && (!errors.As(err, &re) || re.Sandbox != "s1") {
				t.Errorf("got %v, want the sandbox named", err)
			}
		})
	}
	// Renaming a branch that is checked out, HEAD and all, is fine.
	update(t, s, Update{
		Refs:  []RefUpdate{{Name: BranchRef("main"), Old: a}, {Name: BranchRef("trunk"), New: a}},
		Heads: []HeadUpdate{{Sandbox: "s1", Head: Head{Branch: "trunk"}, Commit: a}},
	})
	// An unborn branch is held as well.
	update(t, s, Update{Heads: []HeadUpdate{{Sandbox: "s3", Head: Head{Branch: "unborn"}}}})
	if err := s.Update(t.Context(), Update{Heads: []HeadUpdate{{Sandbox: "s4", Head: Head{Branch: "unborn"}}}}); !errors.Is(err, ErrCheckedOut) {
		t.Errorf("got %v, want ErrCheckedOut", err)
	}
	// Two sandboxes swap branches in one go.
	update(t, s, Update{Heads: []HeadUpdate{
		{Sandbox: "s1", Head: Head{Branch: "unborn"}},
		{Sandbox: "s3", Head: Head{Branch: "trunk"}},
	}})
	heads, err := s.Heads(t.Context())
	if diff := cmp.Diff(map[string]HeadState{"s1": {Head{Branch: "unborn"}, Hash{}}, "s3": {Head{Branch: "trunk"}, a}}, heads); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	wantClean(t, s)
}

func TestReflog(t *testing.T) {
	now := newClock()
	s := openStore(t, Options{Now: now.now})
	h := newHistory(t, s)
	a := h.commit("a")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	update(t, s, Update{Heads: []HeadUpdate{{Sandbox: "s", Head: Head{Commit: a}, Reflog: []ReflogEntry{
		{Commit: a, Action: "run", Message: "first", Time: at},
		{Commit: a, Action: "save", Message: "second", Time: at.Add(time.Second)},
	}}}})
	w := newWriter(t, s)
	b := commit(t, w, &Commit{Kind: KindDisk, Parents: []Hash{a}}, Update{Heads: []HeadUpdate{{Sandbox: "s", Head: Head{Commit: Self}, Reflog: []ReflogEntry{{Commit: Self, Action: "commit"}}}}})
	got, err := s.Reflog(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	want := []ReflogEntry{
		{Commit: b, Action: "commit", Time: got[0].Time},
		{Commit: a, Action: "save", Message: "second", Time: at.Add(time.Second)},
		{Commit: a, Action: "run", Message: "first", Time: at},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d := now.t.Sub(got[0].Time); d < 0 || d > 10*time.Second {
		t.Errorf("entry without a time got %v, the clock is at %v", got[0].Time, now.t)
	}
	// Another sandbox whose id begins the same is not mixed up with it.
	update(t, s, Update{Heads: []HeadUpdate{{Sandbox: "s2", Head: Head{Commit: a}, Reflog: []ReflogEntry{{Commit: a}}}}})
	update(t, s, Update{Heads: []HeadUpdate{{Sandbox: "s", Delete: true}}})
	if got, err := s.Reflog(t.Context(), "s"); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v after the HEAD was deleted, want none", got, err)
	}
	if got, err := s.Reflog(t.Context(), "s2"); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v, want the other sandbox's entry", got, err)
	}
	if _, err := s.Head(t.Context(), "s"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestValidateName(t *testing.T) {
	for _, name := range []string{"a", "0", "main", "a.b_c-d", strings.Repeat("x", 63)} {
		if err := ValidateName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".a", "-a", "_a", "A", "a..b", "a/b", "a b", "a\x00", "é", "a\n", strings.Repeat("x", 64)} {
		if err := ValidateName(name); !errors.Is(err, ErrInvalidRef) {
			t.Errorf("name %q: got %v, want ErrInvalidRef", name, err)
		}
	}
}

// A commit names only what is there, and a bad one is refused with all that is
// wrong with it before anything is written.
func TestCommitIsChecked(t *testing.T) {
	s := openStore(t, Options{})
	w := newWriter(t, s)
	for _, tt := range []struct {
		name string
		c    Commit
		want error
		text string
	}{
		{"parent", Commit{Kind: KindDisk, Parents: []Hash{{1}}}, ErrNotFound, "parent"},
		{"disk", Commit{Kind: KindDisk, Disk: Map{Root: Hash{1}, SizeBytes: 4096, PageBytes: 4096}}, ErrNotFound, "map"},
		{"devices", Commit{Kind: KindFull, Memory: &Map{PageBytes: 4096}, Devices: Hash{1}}, ErrNotFound, "devices"},
		{"memory", Commit{Kind: KindFull}, nil, "memory: missing"},
		{"kind", Commit{Kind: "half"}, nil, `unknown kind "half"`},
		{"several", Commit{Kind: KindDisk, Message: "\xff", Branch: "X"}, nil, "branch: "},
		{"page size", Commit{Kind: KindDisk, Disk: Map{SizeBytes: 4096, PageBytes: 4000}}, nil, "power of two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.Commit(t.Context(), &tt.c, Update{})
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
	// None of that spoiled the writer, and a full commit comes back as it was.
	sp := newSpace(1<<20, 4096)
	sp.touch(testRand(t, 1), 20)
	m, _ := writeMap(t, w, Map{}, sp, sp.all())
	blob, n, err := w.WriteBlob(t.Context(), []byte("devices"))
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	if _, again, err := w.WriteBlob(t.Context(), []byte("devices")); again != 0 || err != nil {
		t.Errorf("stored a blob twice: %d bytes, %v", again, err)
	}
	c := Commit{
		Kind: KindFull, Branch: "main", Sandbox: "box", SandboxID: "id", Message: "hi", Author: "me",
		Created: time.Date(2026, 3, 4, 5, 6, 7, 8, time.FixedZone("", 3600)), Labels: map[string]string{"k": "v", "a": ""},
		Image: ImageRef{"i", "n", "sha256:x"}, Machine: []byte{0xa0}, Memory: &m, Devices: blob,
		Disk: Map{SizeBytes: 1 << 30, PageBytes: DiskPageBytes}, Stats: Stats{1, 2, 3, 4, 5},
	}
	id := commit(t, w, &c, Update{})
	got, err := s.Commit(t.Context(), id)
	if diff := cmp.Diff(&c, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if again := commit(t, w, &c, Update{}); again != id {
		t.Errorf("the same commit got ids %s and %s", id, again)
	}
	if _, err := s.Commit(t.Context(), Hash{7}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if data, err := s.Blob(t.Context(), blob); err != nil || string(data) != "devices" {
		t.Errorf("got %q, %v", data, err)
	}
	wantClean(t, s)
}
