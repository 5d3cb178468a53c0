package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

func TestForkThatFailsLeavesTheOthers(t *testing.T) {
	h := newHost(t)
	h.boot(t, "src")
	c := h.mustCommit(t, "src", "one")
	n := 0
	h.vmms.LaunchError = func(vmm.Spec) error {
		if n++; n == 2 {
			return errors.New("no such luck")
		}
		return nil
	}
	forks, err := h.Fork(t.Context(), ForkRequest{From: c.ID, N: 3, Prefix: "f", Branch: true}, nil)
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Fatalf("got error %v", err)
	}
	if len(forks) != 2 {
		t.Fatalf("got %d forks, want the 2 that came up", len(forks))
	}
	names := []string{"src", forks[0].Name, forks[1].Name}
	if left := h.leftovers(t, names...); len(left) > 0 {
		t.Errorf("the failed fork left %v", left)
	}
	refs, err := h.ListRefs(t.Context(), BranchRef)
	if err != nil {
		t.Fatal(err)
	}
	if len(refs) != 3 {
		t.Errorf("branches %v: want the source's and those of two forks", refs)
	}
}

func TestCheckoutThatFailsGoesBack(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	first := h.mustCommit(t, "a", "one")
	h.mustCommit(t, "a", "two")
	before, err := h.Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	h.vmms.LaunchError = func(vmm.Spec) error {
		if n++; n == 1 {
			return errors.New("no such luck")
		}
		return nil
	}
	if _, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: first.ID}); err == nil {
		t.Fatal("no error")
	}
	after, err := h.Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if after.State != Running || after.Head != before.Head || after.PID == before.PID {
		t.Errorf("after: %s at %v pid %d; before: %s at %v pid %d", after.State, after.Head, after.PID, before.State, before.Head, before.PID)
	}
	if left := h.leftovers(t, "a"); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestCheckoutSavesFirst(t *testing.T) {
	h := newHost(t)
	r := h.boot(t, "a")
	first := h.mustCommit(t, "a", "one")
	h.mustCommit(t, "a", "two")
	s, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "a~1"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Head != (Head{Commit: first.ID}) || s.IP != r.Network.Addr.String() {
		t.Errorf("at %v, address %s", s.Head, s.IP)
	}
	saved, err := h.Show(t.Context(), "a@{1}")
	if err != nil {
		t.Fatal(err)
	}
	if saved.Kind != "full" || saved.Parents[0] == first.ID {
		t.Errorf("saved state: %+v", saved)
	}
	if _, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "a@{1}", NoSave: true}); err != nil {
		t.Fatal(err)
	}
	log, err := h.Reflog(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, it := range log {
		actions = append(actions, it.Action)
	}
	if want := []string{"checkout", "checkout", "save", "commit", "commit"}; !cmp.Equal(actions, want) {
		t.Errorf("reflog: %s", cmp.Diff(want, actions))
	}
}

// The dump of a commit is what the machine's memory was, also after a commit
// that failed when pages had already been collected.
func TestMemoryIsWholeAfterAFailedCommit(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	h.mustCommit(t, "a", "one")
	// A store that another one holds cannot be written.
	hurried := branches.KeeperOptions{Store: branches.Options{Dir: h.store(), Wait: 1}}
	if err := h.withStore(t.Context(), func(*branches.Store) error {
		patient := h.kept
		h.kept = branches.NewKeeper(hurried)
		defer func() { h.kept = patient }()
		_, err := h.Commit(t.Context(), CommitRequest{Name: "a", Message: "cannot be"})
		if !errors.Is(err, ErrBusy) {
			t.Errorf("commit beside a held store: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s, err := h.Inspect(t.Context(), "a"); err != nil || s.State != Running {
		t.Fatalf("source after the failed commit: %s, %v", s.State, err)
	}
	if err := h.Pause(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	r, err := h.find("a")
	if err != nil {
		t.Fatal(err)
	}
	want := ramOf(t, r)
	c := h.mustCommit(t, "a", "two")
	id, err := branches.ParseHash(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(h.dump(id).memory())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the dump is not what the machine's memory was")
	}
	// And the store has the same.
	f, err := os.Create(filepath.Join(t.TempDir(), "m"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := h.withStore(t.Context(), func(s *branches.Store) error {
		bc, err := s.Commit(t.Context(), id)
		if err != nil {
			return err
		}
		return s.Materialize(t.Context(), *bc.Memory, f, branches.MaterializeOptions{Verify: true})
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the stored memory is not what the machine's was (%v)", err)
	}
}

// ramOf reads all RAM of a paused machine without the help of guestmem's trackers.
func ramOf(t *testing.T, r *record) []byte {
	t.Helper()
	m, err := guestmem.Open(guestmem.Target{PID: r.Handle.PID, MemoryFile: r.Handle.MemoryFile, SizeBytes: r.Machine.MemoryBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all := new(guestmem.PageSet)
	all.AddRange(0, r.Machine.MemoryBytes/guestmem.PageBytes)
	f, err := os.Create(filepath.Join(t.TempDir(), "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := m.Copy(t.Context(), all, f); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// What a killed command leaves is put right by the next one.
func TestCrashLeftovers(t *testing.T) {
	t.Run("half-made", func(t *testing.T) {
		h := newHost(t)
		if err := h.prepare(); err != nil {
			t.Fatal(err)
		}
		claims, err := h.claim(t.Context(), draft{rec: &record{Name: "half", Machine: machine{CPUs: 1, MemoryBytes: 128 << 20, DiskBytes: 32 << 20}, Network: network{Mode: NetworkNAT}}})
		if err != nil {
			t.Fatal(err)
		}
		r := claims[0].rec
		if err := os.WriteFile(h.layer(r.ID), make([]byte, 32<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := h.start(t.Context(), r, source{}); err != nil {
			t.Fatal(err)
		}
		pid := r.Handle.PID
		// The kill comes here: the lock goes with the process, the record does
		// not know the VMM yet.
		claims[0].lock.unlock()
		h.boot(t, "next")
		if _, err := process.StartTime(pid); !errors.Is(err, vmm.ErrGone) {
			t.Error("the machine still runs")
		}
		if left := h.leftovers(t, "next"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
	t.Run("nobody comes", func(t *testing.T) {
		h := newHost(t)
		if n, err := h.Recover(t.Context()); n != 0 || err != nil || exists(h.data) {
			t.Errorf("without a data directory: got %d, %v", n, err)
		}
		r := h.boot(t, "a")
		m, err := h.attach(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := errors.Join(m.Pause(t.Context()), os.WriteFile(h.pauseMark(r.ID), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		claims, err := h.claim(t.Context(), draft{rec: &record{Name: "half", Machine: machine{CPUs: 1, MemoryBytes: 128 << 20, DiskBytes: 32 << 20}, Network: network{Mode: NetworkNAT}}})
		if err != nil {
			t.Fatal(err)
		}
		claims[0].lock.unlock()
		if err := os.Mkdir(filepath.Join(h.tmp(), "builder-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if n, err := h.Recover(t.Context()); n != 1 || err != nil {
			t.Errorf("got %d removed, %v, want the half-made one", n, err)
		}
		if left := h.leftovers(t, "a"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		if paused, err := m.Paused(t.Context()); err != nil || paused {
			t.Errorf("paused %v, %v", paused, err)
		}
		if exists(filepath.Join(h.tmp(), "builder-1")) {
			t.Error("what a build left is still there")
		}
	})
	t.Run("paused by a commit", func(t *testing.T) {
		h := newHost(t)
		r := h.boot(t, "a")
		m, err := h.attach(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := m.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.pauseMark(r.ID), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Exec(t.Context(), ExecRequest{Name: "a", Args: []string{"true"}}, ExecIO{}); err != nil {
			t.Fatal(err)
		}
		if paused, err := m.Paused(t.Context()); err != nil || paused {
			t.Errorf("paused %v, %v after the next command", paused, err)
		}
	})
	for name, next := range map[string]func(h *host) error{
		"recover": func(h *host) error { _, err := h.Recover(t.Context()); return err },
		"gc":      func(h *host) error { _, err := h.GC(t.Context(), false); return err },
		// A fork has the store open at times, which removing needs too.
		"fork": func(h *host) error {
			_, err := h.Fork(t.Context(), ForkRequest{From: "b", N: 1, Prefix: "c"}, nil)
			return err
		},
	} {
		t.Run("half-removed, then "+name, func(t *testing.T) {
			h := newHost(t)
			r := h.boot(t, "a")
			h.boot(t, "b")
			r.Phase = removing
			if err := h.save(r); err != nil {
				t.Fatal(err)
			}
			if err := next(h); err != nil {
				t.Fatal(err)
			}
			list, err := h.List(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range list {
				names = append(names, s.Name)
			}
			if left := h.leftovers(t, names...); len(left) > 0 || slices.Contains(names, "a") {
				t.Errorf("left %v beside %v", left, names)
			}
		})
	}
	t.Run("in a checkout", func(t *testing.T) {
		h := newHost(t)
		h.boot(t, "a")
		first := h.mustCommit(t, "a", "one")
		second := h.mustCommit(t, "a", "two")
		r, err := h.find("a")
		if err != nil {
			t.Fatal(err)
		}
		target, err := branches.ParseHash(first.ID)
		if err != nil {
			t.Fatal(err)
		}
		cutOff := func(kill bool) Sandbox {
			t.Helper()
			r.Swap = &swap{Commit: target, Ref: "a~1", Branch: "again", NewBranch: true, Generation: r.Memory.Generation}
			if err := h.save(r); err != nil {
				t.Fatal(err)
			}
			if kill {
				m, err := h.attach(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				if err := m.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			list, err := h.List(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 1 || list[0].State != Running {
				t.Fatalf("after the cut: %+v", list)
			}
			return list[0]
		}
		if s := cutOff(false); s.Head.Commit != second.ID || s.PID != r.Handle.PID {
			t.Errorf("before anything had happened: %+v", s)
		}
		if s := cutOff(true); s.Head != (Head{Commit: first.ID, Branch: "again"}) {
			t.Errorf("once the machine was gone: %+v", s)
		}
		if left := h.leftovers(t, "a"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}

// Identifiers are given back: addresses of many sandboxes made and removed
// begin at the same one again.
func TestManyCyclesLeakNothing(t *testing.T) {
	h := newHost(t)
	cycles := 40
	if testing.Short() {
		cycles = 5
	}
	for i := range cycles {
		r := h.boot(t, "again")
		if r.Network.Addr.String() != "10.0.0.1" {
			t.Fatalf("cycle %d got address %s", i, r.Network.Addr)
		}
		if err := h.Remove(t.Context(), "again", true); err != nil {
			t.Fatal(err)
		}
	}
	if left := h.leftovers(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestBranchIsCheckedOutOnce(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	h.mustCommit(t, "a", "one")
	if _, err := h.Fork(t.Context(), ForkRequest{From: "a", N: 1, Prefix: "b"}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := h.Checkout(t.Context(), CheckoutRequest{Name: "b", Ref: "a"})
	if !errors.Is(err, ErrBusy) || Hint(err) == "" {
		t.Errorf("second checkout of branch a: %v (hint %q)", err, Hint(err))
	}
	if _, err := h.Checkout(t.Context(), CheckoutRequest{Name: "b", Ref: "a", NewBranch: "mine"}); err != nil {
		t.Fatal(err)
	}
	refs, err := h.ListRefs(t.Context(), BranchRef)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range refs {
		got = append(got, r.Name+" in "+r.Sandbox)
	}
	slices.Sort(got)
	if want := []string{"a in a", "mine in b"}; !cmp.Equal(got, want) {
		t.Errorf("branches: %s", cmp.Diff(want, got))
	}
	if err := h.DeleteRef(t.Context(), BranchRef, "mine"); !errors.Is(err, ErrBusy) {
		t.Errorf("delete of a checked-out branch: %v", err)
	}
	if err := h.RenameBranch(t.Context(), "mine", "yours"); err != nil {
		t.Fatal(err)
	}
	if s, err := h.Inspect(t.Context(), "b"); err != nil || s.Head.Branch != "yours" {
		t.Errorf("HEAD of b after the rename: %v, %v", s.Head, err)
	}
}

// A name that a sandbox has means that sandbox's HEAD to every verb, also where
// a branch of that name is elsewhere by now.
func TestSandboxGoesBeforeBranch(t *testing.T) {
	h := newHost(t)
	var remarks []string
	h.opts.Remark = func(s string) {
		if strings.HasPrefix(s, "a ") {
			remarks = append(remarks, s)
		}
	}
	h.boot(t, "a")
	first := h.mustCommit(t, "a", "one")
	second := h.mustCommit(t, "a", "two")
	h.boot(t, "other")
	if s, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "a", NoSave: true}); err != nil || s.Head != (Head{Branch: "a", Commit: second.ID}) {
		t.Fatalf("HEAD on its branch: at %v, %v", s.Head, err)
	}
	if len(remarks) > 0 {
		t.Errorf("remarks %q", remarks)
	}
	if _, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "a~1", NoSave: true}); err != nil {
		t.Fatal(err)
	}
	for verb, at := range map[string]func() (string, error){
		"show": func() (string, error) { c, err := h.Show(t.Context(), "a"); return c.ID, err },
		"tag": func() (string, error) {
			r, err := h.CreateRef(t.Context(), TagRef, "v1", "a")
			return r.Commit, err
		},
		"branch": func() (string, error) {
			r, err := h.CreateRef(t.Context(), BranchRef, "b1", "a")
			return r.Commit, err
		},
		"log": func() (string, error) {
			l, err := h.Log(t.Context(), LogRequest{Ref: "a", N: 1})
			return l[0].ID, err
		},
		"checkout": func() (string, error) {
			s, err := h.Checkout(t.Context(), CheckoutRequest{Name: "other", Ref: "a"})
			return s.Head.Commit, err
		},
		"run": func() (string, error) {
			s, err := h.runCommit(t.Context(), RunRequest{Name: "ran", From: "a"}, time.Now())
			return s.Head.Commit, err
		},
	} {
		if got, err := at(); err != nil || got != first.ID {
			t.Errorf("%s a: %s, %v; want the HEAD, %s", verb, got, err, first.ID)
		}
	}
	if want := []string{"a goes by the HEAD of the sandbox; for the branch of that name write branch/a"}; !slices.Equal(remarks, want) {
		t.Errorf("remarks %q", remarks)
	}
	if s, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "branch/a"}); err != nil || s.Head != (Head{Branch: "a", Commit: second.ID}) {
		t.Errorf("checkout of branch/a: at %v, %v", s.Head, err)
	}
}

// What does not exist is not found, whatever else is wrong with the request.
func TestRunOfNothing(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	c := h.mustCommit(t, "a", "one")
	for _, tt := range []struct {
		from string
		want error
	}{{"nosuch:v1", ErrNotFound}, {"nosuch", ErrNotFound}, {c.ID, ErrUsage}} {
		_, err := h.Run(t.Context(), RunRequest{Name: "b", From: tt.from, Args: []string{"echo"}})
		if !errors.Is(err, tt.want) || Hint(err) == "" {
			t.Errorf("run %s -- echo: %v (hint %q), want %v", tt.from, err, Hint(err), tt.want)
		}
	}
}

// An error about a name says once what is wrong with it.
func TestWordsAboutRefs(t *testing.T) {
	h := newHost(t)
	h.boot(t, "young")
	h.boot(t, "a")
	c := h.mustCommit(t, "a", "one")
	show := func(ref string) error { _, err := h.Show(t.Context(), ref); return err }
	for ref, want := range map[string]string{
		"x":          `"x" names no commit: it is no sandbox, branch, tag or commit id`,
		"branch/x":   `"branch/x" names no commit: there is no branch x`,
		"young":      `"young" names no commit: sandbox young has no commit yet`,
		"a~1":        `"a~1" names no commit: commit ` + c.ID[:12] + ` has no parent`,
		"a@{5}":      `"a@{5}" names no commit: the reflog has 1, counted from 0`,
		"0000000000": `"0000000000" names no commit: it is no sandbox, branch, tag or commit id`,
		"BOX":        `ref "BOX" is not allowed: it must start with a lower-case letter or a digit`,
		"a b":        `ref "a b" is not allowed: only lower-case letters, digits, '.', '_' and '-' are allowed`,
	} {
		kind := ErrNotFound
		if strings.Contains(want, "not allowed") {
			kind = ErrUsage
		}
		if err := show(ref); err == nil || err.Error() != want || !errors.Is(err, kind) || Hint(err) == "" {
			t.Errorf("show %s: %v (hint %q)\nwant %s", ref, err, Hint(err), want)
		}
	}
	_, err := h.Inspect(t.Context(), "BOX")
	if want := `sandbox name "BOX" is not allowed: it must start with a lower-case letter or a digit`; err == nil || err.Error() != want {
		t.Errorf("inspect BOX: %v\nwant %s", err, want)
	}
}

func TestBranchesAndTagsShareNames(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	h.mustCommit(t, "a", "one")
	if _, err := h.CreateRef(t.Context(), TagRef, "t1", "a"); err != nil {
		t.Fatal(err)
	}
	h.boot(t, "young") // its first commit makes branch young
	for what, err := range map[string]error{
		"branch t1": func() error { _, err := h.CreateRef(t.Context(), BranchRef, "t1", "a"); return err }(),
		"tag t1":    func() error { _, err := h.CreateRef(t.Context(), TagRef, "t1", "a"); return err }(),
		"tag a":     func() error { _, err := h.CreateRef(t.Context(), TagRef, "a", "a"); return err }(),
		"tag young": func() error { _, err := h.CreateRef(t.Context(), TagRef, "young", "a"); return err }(),
		"rename":    h.RenameBranch(t.Context(), "a", "t1"),
		"checkout": func() error {
			_, err := h.Checkout(t.Context(), CheckoutRequest{Name: "a", Ref: "a", NewBranch: "t1"})
			return err
		}(),
	} {
		if !errors.Is(err, ErrBusy) || Hint(err) == "" {
			t.Errorf("%s: %v (hint %q)", what, err, Hint(err))
		}
	}
	h.boot(t, "t1")
	if s, err := h.Inspect(t.Context(), "t1"); err != nil || s.Head.Branch != "t1-2" {
		t.Errorf("sandbox t1 is on branch %q, %v", s.Head.Branch, err)
	}
}

// Every request is refused as a whole before anything is made.
func TestRunValidatesFirst(t *testing.T) {
	h := newHost(t)
	_, err := h.Run(t.Context(), RunRequest{Name: "../x", From: "", CPUs: -1, MemoryBytes: 1, DiskBytes: 1, Network: "wifi",
		Ports: []Port{{Host: 0, Guest: 80}}, Env: []string{"=x"}})
	if !errors.Is(err, ErrUsage) {
		t.Fatalf("got %v", err)
	}
	if n := len(strings.Split(err.Error(), "\n")); n != 8 {
		t.Errorf("%d complaints, want 8:\n%v", n, err)
	}
	if exists(h.data) {
		t.Error("the data directory was made for a refused request")
	}
}

// Numbers and bytes that would break what comes later are refused before it.
func TestRequestsHaveBounds(t *testing.T) {
	h := newHost(t)
	const huge = 1<<63 - 2
	for words, q := range map[string]RunRequest{
		"memory":            {MemoryBytes: huge},
		"disk":              {DiskBytes: huge},
		"ttl":               {TTL: huge},
		"env":               {Env: []string{"A=\x00"}},
		"argument":          {Args: []string{"sh", "a\x00b"}},
		"working directory": {WorkingDir: "/\x00"},
		"user":              {User: "\x00"},
		"label":             {Labels: map[string]string{"": "x"}},
	} {
		q.From = "small"
		if _, err := h.Run(t.Context(), q); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), words) {
			t.Errorf("run with a bad %s: got %v", words, err)
		}
	}
	for words, q := range map[string]ExecRequest{
		"no command":        {Args: []string{""}},
		"argument":          {Args: []string{"true", "\x00"}},
		"environment":       {Args: []string{"true"}, Env: []string{"A=\x00"}},
		"working directory": {Args: []string{"true"}, WorkingDir: "\x00"},
		"user":              {Args: []string{"true"}, User: "\x00"},
	} {
		q.Name = "box"
		if _, err := h.Exec(t.Context(), q, ExecIO{}); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), words) {
			t.Errorf("exec with a bad %s: got %v", words, err)
		}
		if _, err := h.StartProcess(t.Context(), q); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), words) {
			t.Errorf("process with a bad %s: got %v", words, err)
		}
	}
	for path, words := range map[string]string{"x": "absolute", "/a\x00": "NUL", "/\xff": "UTF-8"} {
		if _, err := h.StatPath(t.Context(), "box", path); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), words) {
			t.Errorf("stat of %q: got %v", path, err)
		}
	}
}

// A forwarded port that nobody chose is none that the host gives to somebody else.
func TestFreePortsAreNotTheHosts(t *testing.T) {
	first := localPorts()
	if first <= firstFreePort {
		t.Skipf("this host gives ports from %d on", first)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		for range 20 {
			got, err := freeHostPort(Port{HostIP: "127.0.0.1", Protocol: protocol})
			if err != nil || got < firstFreePort || int(got) >= first {
				t.Errorf("got %s port %d, %v, want one from %d to %d", protocol, got, err, firstFreePort, first)
			}
		}
	}
}

// What cannot be imported is the caller's mistake, not the host's.
func TestImportOfNoArchive(t *testing.T) {
	h := newHost(t)
	for _, data := range []string{"", "no tar at all", strings.Repeat("\x00", 1024) + "x"} {
		if _, err := h.ImportImage(t.Context(), ImportRequest{Reader: strings.NewReader(data), Name: "x"}); !errors.Is(err, ErrUsage) {
			t.Errorf("import of %.20q: got %v", data, err)
		}
	}
}

// Two commands on one sandbox follow each other; two forks go side by side.
func TestConcurrentVerbs(t *testing.T) {
	h := newHost(t)
	h.boot(t, "a")
	c := h.mustCommit(t, "a", "one")
	errs := make(chan error)
	const n = 4
	for i := range n {
		go func() {
			_, err := h.Commit(context.Background(), CommitRequest{Name: "a", Message: fmt.Sprint(i)})
			errs <- err
		}()
		go func() {
			_, err := h.Fork(context.Background(), ForkRequest{From: c.ID, N: 2, Prefix: "f"}, nil)
			errs <- err
		}()
	}
	for range 2 * n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	list, err := h.List(t.Context(), false)
	if err != nil || len(list) != 1+2*n {
		t.Errorf("%d sandboxes run (%v), want %d", len(list), err, 1+2*n)
	}
	log, err := h.Log(t.Context(), LogRequest{Ref: "a"})
	if err != nil || len(log) != 1+n {
		t.Errorf("history of a has %d commits (%v), want %d", len(log), err, 1+n)
	}
}
