package branches

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

type names map[string]string

func (n names) SandboxID(name string) (string, bool) { id, ok := n[name]; return id, ok }

func TestResolve(t *testing.T) {
	s := openStore(t, Options{})
	h := newHistory(t, s)
	h.commit("root")
	h.commit("a1", "root")
	h.commit("a2", "a1")
	h.commit("b1", "root")
	h.commit("merge", "a2", "b1")
	box := names{"box": "id-box", "main": "id-main", "newborn": "id-newborn", "both": "id-both", "v2": "id-v2"}
	update(t, s, Update{
		Refs: []RefUpdate{
			{Name: BranchRef("main"), New: h.ids["merge"]},
			{Name: TagRef("main"), New: h.ids["root"]},
			{Name: TagRef("v1.0"), New: h.ids["a1"]},
			{Name: TagRef("v2"), New: h.ids["a1"]},
			{Name: BranchRef("both"), New: h.ids["a1"]},
			{Name: BranchRef("newborn"), New: h.ids["a1"]},
			{Name: BranchRef(h.ids["b1"].String()[:6]), New: h.ids["a2"]}, // looks like an id
		},
		Heads: []HeadUpdate{
			{Sandbox: "id-box", Head: Head{Commit: h.ids["a2"]}, Reflog: []ReflogEntry{{Commit: h.ids["root"]}, {Commit: h.ids["a1"]}, {Commit: h.ids["a2"]}}},
			{Sandbox: "id-main", Head: Head{Commit: h.ids["b1"]}, Reflog: []ReflogEntry{{Commit: h.ids["b1"]}}},
			{Sandbox: "id-both", Head: Head{Branch: "both"}, Commit: h.ids["a1"]},
			{Sandbox: "id-v2", Head: Head{Commit: h.ids["b1"]}, Commit: h.ids["b1"]},
			{Sandbox: "id-newborn", Head: Head{Branch: "newborn-branch"}},
		},
	})
	b1 := h.ids["b1"].String()
	for _, tt := range []struct {
		expr, commit, branch, sandbox string
	}{
		{"main", "b1", "", "id-main"}, // a sandbox goes before a branch
		{"branch/main", "merge", "main", ""},
		{"both", "a1", "both", "id-both"}, // one commit under both names
		{"tag/main", "root", "", ""},
		{"sandbox/main", "b1", "", "id-main"},
		{"branch/main~", "a2", "", ""},
		{"branch/main~0", "merge", "", ""},
		{"branch/main~1", "a2", "", ""},
		{"branch/main~3", "root", "", ""},
		{"branch/main^", "a2", "", ""},
		{"branch/main^0", "merge", "", ""},
		{"branch/main^2", "b1", "", ""},
		{"branch/main^2~1", "root", "", ""},
		{"branch/main^^", "a1", "", ""},
		{"branch/main~1^1~", "root", "", ""},
		{"v1.0", "a1", "", ""},
		{"box", "a2", "", "id-box"},
		{"box@{0}", "a2", "", "id-box"},
		{"box@{2}", "root", "", "id-box"},
		{"box@{1}~1", "root", "", "id-box"},
		{"sandbox/main@{0}", "b1", "", "id-main"},
		{b1, "b1", "", ""},
		{b1[:8], "b1", "", ""},
		{b1[:9] + "~1", "root", "", ""},
		{b1[:6], "a2", b1[:6], ""}, // a branch goes before an id
	} {
		got, err := s.Resolve(t.Context(), tt.expr, box)
		want := Resolved{Commit: h.ids[tt.commit], Branch: tt.branch, Sandbox: tt.sandbox, Hidden: got.Hidden}
		if err != nil || got != want {
			t.Errorf("%s: got %s %+v, %v; want %s %+v", tt.expr, h.names[got.Commit], got, err, tt.commit, want)
		}
	}
	for expr, want := range map[string]RefName{
		"main": BranchRef("main"), "main~0": BranchRef("main"), "newborn": BranchRef("newborn"), "v2": TagRef("v2"),
		"both": "", "branch/main": "", "sandbox/main": "", "box": "", "main@{0}": "", "v1.0": "",
	} {
		if got, _ := s.Resolve(t.Context(), expr, box); got.Hidden != want {
			t.Errorf("%s hides %q, want %q", expr, got.Hidden, want)
		}
	}
	for _, tt := range []struct {
		expr string
		want error
	}{
		{"nothing", ErrNotFound},
		{"branch/main~4", ErrNotFound},
		{"branch/main^3", ErrNotFound},
		{"box@{3}", ErrNotFound},
		{"v1.0@{0}", ErrNotFound}, // no sandbox
		{"newborn", ErrNotFound},
		{"sandbox/none", ErrNotFound},
		{b1[:3], ErrNotFound}, // too short for a prefix
		{"0123456789", ErrNotFound},
		{Hash{0xab}.String(), ErrNotFound},
		{"", ErrInvalidRef},
		{"~1", ErrInvalidRef},
		{"main~x", ErrInvalidRef},
		{"main@", ErrInvalidRef},
		{"main@{", ErrInvalidRef},
		{"main@{}", ErrInvalidRef},
		{"main@{-1}", ErrInvalidRef},
		{"main@{1}@{1}", ErrInvalidRef},
		{"branch/main~99999999999999999999", ErrInvalidRef},
		{"Main", ErrInvalidRef},
		{"../x", ErrInvalidRef},
		{"branch/", ErrInvalidRef},
		{"other/main", ErrInvalidRef},
		{"main\x00", ErrInvalidRef},
		{b1 + "0", ErrInvalidRef},
	} {
		if got, err := s.Resolve(t.Context(), tt.expr, box); !errors.Is(err, tt.want) {
			t.Errorf("%q: got %v, %v; want %v", tt.expr, got, err, tt.want)
		}
	}
	if _, err := s.Resolve(t.Context(), "box", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("without a resolver: got %v, want ErrNotFound", err)
	}
}

func TestResolveAmbiguousPrefix(t *testing.T) {
	s := openStore(t, Options{})
	h := newHistory(t, s)
	byPrefix := map[string][]Hash{}
	for i := 0; ; i++ {
		id := h.commit(fmt.Sprint(i))
		p := id.String()[:4]
		if byPrefix[p] = append(byPrefix[p], id); len(byPrefix[p]) < 2 {
			continue
		}
		_, err := s.Resolve(t.Context(), p, nil)
		var ae *AmbiguousError
		if !errors.As(err, &ae) || !errors.Is(err, ErrAmbiguous) || len(ae.Candidates) != 2 {
			t.Fatalf("got %v, want both candidates", err)
		}
		// One digit more, of an odd length, tells them apart (or not, rarely).
		if long := id.String()[:7]; byPrefix[p][0].String()[:7] != long {
			if got, err := s.Resolve(t.Context(), long, nil); err != nil || got.Commit != id {
				t.Errorf("got %v, %v, want %s", got, err, id)
			}
		}
		return
	}
}

func FuzzParseExpression(f *testing.F) {
	for _, s := range []string{"main", "a~2^1", "box@{3}~", "branch/x^0", "deadbeef~10"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseExpression(s)
		if err != nil {
			if !errors.Is(err, ErrInvalidRef) {
				t.Errorf("got %v, want ErrInvalidRef", err)
			}
			return
		}
		if validBase(e.base) != nil || len(e.steps) > len(s) {
			t.Errorf("%q became %+v", s, e)
		}
	})
}

// The order of the log and the merge base against plain definitions, on random
// graphs whose clocks go astray.
func TestHistoryOnRandomGraphs(t *testing.T) {
	for seed := range uint64(12) {
		r := testRand(t, seed)
		s := openStore(t, Options{})
		h := newHistory(t, s)
		parents := map[Hash][]Hash{}
		var all []Hash
		for i := range 40 {
			var ps []string
			for range min(i, r.IntN(3)) {
				p := fmt.Sprint(i - 1 - r.IntN(min(i, 8)))
				if len(ps) == 0 || ps[0] != p {
					ps = append(ps, p)
				}
			}
			skew := time.Duration(r.IntN(600)-300) * time.Minute
			id := h.commitAt(fmt.Sprint(i), h.at.Add(time.Duration(i)*time.Minute+skew), ps...)
			for _, p := range ps {
				parents[id] = append(parents[id], h.ids[p])
			}
			all = append(all, id)
		}
		up := map[Hash]map[Hash]bool{} // ancestors, self included
		for _, id := range all {
			up[id] = map[Hash]bool{id: true}
			for _, p := range parents[id] {
				for a := range up[p] {
					up[id][a] = true
				}
			}
		}
		for range 60 {
			a, b := all[r.IntN(len(all))], all[r.IntN(len(all))]
			if got, err := s.IsAncestor(t.Context(), a, b); err != nil || got != up[b][a] {
				t.Fatalf("seed %d: is %s an ancestor of %s: got %v, %v", seed, h.names[a], h.names[b], got, err)
			}
			checkMergeBase(t, h, up, a, b)
			checkLog(t, h, up, parents, a, b)
		}
	}
}

func checkMergeBase(t *testing.T, h *history, up map[Hash]map[Hash]bool, a, b Hash) {
	t.Helper()
	best := map[Hash]bool{}
	for c := range up[a] {
		if !up[b][c] {
			continue
		}
		best[c] = true
	}
	for c := range best {
		for d := range best {
			if c != d && up[d][c] {
				delete(best, c)
				break
			}
		}
	}
	got, err := h.s.MergeBase(t.Context(), a, b)
	if len(best) == 0 {
		if !errors.Is(err, ErrNotFound) {
			t.Fatalf("merge base of unrelated %s and %s: got %v", h.names[a], h.names[b], err)
		}
		return
	}
	if err != nil || !best[got] {
		t.Fatalf("merge base of %s and %s: got %s, %v, want one of %d", h.names[a], h.names[b], h.names[got], err, len(best))
	}
}

func checkLog(t *testing.T, h *history, up map[Hash]map[Hash]bool, parents map[Hash][]Hash, a, b Hash) {
	t.Helper()
	log, err := h.s.Log(t.Context(), []Hash{a, b}, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Hash]bool{}
	for _, c := range log {
		for _, p := range parents[c.ID] {
			if seen[p] {
				t.Fatalf("log of %s and %s: %s comes before its child %s", h.names[a], h.names[b], h.names[p], c.Message)
			}
		}
		seen[c.ID] = true
	}
	want := map[Hash]bool{}
	for _, m := range []map[Hash]bool{up[a], up[b]} {
		for c := range m {
			want[c] = true
		}
	}
	if len(seen) != len(log) || len(seen) != len(want) {
		t.Fatalf("log of %s and %s: %d entries, %d commits, want %d", h.names[a], h.names[b], len(log), len(seen), len(want))
	}
	if some, err := h.s.Log(t.Context(), []Hash{a, b}, 3); err != nil || len(some) != min(3, len(log)) || some[0].ID != log[0].ID {
		t.Fatalf("log of 3: got %d, %v", len(some), err)
	}
}
