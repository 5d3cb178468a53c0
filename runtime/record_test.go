package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
)

func testLayout(t *testing.T) layout {
	t.Helper()
	l := layout{data: filepath.Join(t.TempDir(), "data")}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRecordsShowDamagedOnes(t *testing.T) {
	l := testLayout(t)
	good := &record{ID: "aaaaaaaaaa", Name: "good", Want: wantStopped}
	for _, id := range []string{"aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"} {
		if err := os.Mkdir(l.sandbox(id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.save(good); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.recordPath("bbbbbbbbbb"), []byte("{\"name\": "), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := l.records()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, r := range list {
		got[r.ID] = r.Fault != ""
	}
	if len(got) != 2 || got["aaaaaaaaaa"] || !got["bbbbbbbbbb"] {
		t.Errorf("got sandboxes (with fault) %v, want the good one and the damaged one", got)
	}
}

func TestNewerRecordIsRefused(t *testing.T) {
	l := testLayout(t)
	if err := os.Mkdir(l.sandbox("aaaaaaaaaa"), 0o700); err != nil {
		t.Fatal(err)
	}
	data := fmt.Sprintf(`{"version": %d, "id": "aaaaaaaaaa", "name": "x"}`, recordVersion+1)
	if err := os.WriteFile(l.recordPath("aaaaaaaaaa"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.load("aaaaaaaaaa"); !errors.Is(err, ErrHost) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A directory that holds guests' memory is nobody else's business.
func TestDataDirectoryIsPrivate(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	l := testLayout(t)
	if err := os.Mkdir(l.sandbox("aaaaaaaaaa"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.save(&record{ID: "aaaaaaaaaa", Name: "x"}); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(l.data, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestScratchIsSweptOnceItsOwnerIsGone(t *testing.T) {
	l := testLayout(t)
	mine, err := l.newScratch("x")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := l.newScratch("x")
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.unlock() // as the end of a process does
	if n := l.sweepScratch(); n != 1 {
		t.Errorf("swept %d, want 1", n)
	}
	if !exists(mine.dir) || exists(dead.dir) {
		t.Errorf("after the sweep: mine %v, dead %v", exists(mine.dir), exists(dead.dir))
	}
	if err := mine.remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(l.tmp()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFreeName(t *testing.T) {
	taken := map[string]*record{"a-1": {}, "a-3": {}}
	if got, err := freeName("a", taken); err != nil || got != "a-2" {
		t.Errorf("got %q, %v; want a-2", got, err)
	}
	if _, err := freeName(strings.Repeat("x", 63), taken); !errors.Is(err, ErrUsage) {
		t.Errorf("prefix that leaves no room: got %v", err)
	}
	all := map[string]*record{}
	for range 2000 {
		n, err := freeName("", all)
		if err != nil || all[n] != nil || branches.ValidateName(n) != nil {
			t.Fatalf("made up %q, %v", n, err)
		}
		all[n] = &record{}
	}
}

func TestPortsFree(t *testing.T) {
	other := &record{Name: "web", Network: network{Ports: []Port{{HostIP: "127.0.0.1", Host: 8080, Guest: 80, Protocol: "tcp"}}}}
	for _, c := range []struct {
		port Port
		free bool
	}{
		{Port{HostIP: "127.0.0.1", Host: 8080, Protocol: "tcp"}, false},
		{Port{HostIP: "0.0.0.0", Host: 8080, Protocol: "tcp"}, false},
		{Port{HostIP: "127.0.0.2", Host: 8080, Protocol: "tcp"}, true},
		{Port{HostIP: "0.0.0.0", Host: 8080, Protocol: "udp"}, true},
		{Port{HostIP: "0.0.0.0", Host: 8081, Protocol: "tcp"}, true},
	} {
		err := portsFree(&record{Network: network{Ports: []Port{c.port}}}, []*record{other})
		if (err == nil) != c.free {
			t.Errorf("%+v: got %v, want free %v", c.port, err, c.free)
		}
		if err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("%+v: %v is not ErrBusy", c.port, err)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[31mb\x07\tc\u009bd"); got != "a[31mb\tcd" {
		t.Errorf("got %q", got)
	}
}

func TestHint(t *testing.T) {
	inner := &Error{Kind: ErrHost, Message: "m", Hint: "do this"}
	for _, err := range []error{inner, fmt.Errorf("x: %w", inner), errors.Join(errors.New("y"), inner), &Error{Message: "outer", Err: inner}} {
		if got := Hint(err); got != "do this" {
			t.Errorf("Hint(%v) = %q", err, got)
		}
	}
	if Hint(errors.New("z")) != "" || Hint(nil) != "" {
		t.Error("a hint from nowhere")
	}
}

func TestSeekTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var b strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1, 2, 9999, 10000, 20000} {
		if err := seekTail(f, n); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1<<20)
		k, _ := f.Read(buf)
		if got := strings.Count(string(buf[:k]), "\n"); got != min(n, 10000) {
			t.Errorf("last %d lines: got %d", n, got)
		}
	}
}
