package api

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// parking is a waking engine with a clock of its own.
func parking(t *testing.T, f *fakeEngine, dir string) (*waking, *time.Time) {
	t.Helper()
	w, err := newWaking(f, 10*time.Minute, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := testNow
	w.now = func() time.Time { return now }
	return w, &now
}

func TestIdleSandboxesAreParkedAndWoken(t *testing.T) {
	f, dir := newFake(), t.TempDir()
	f.process.Running = false
	w, now := parking(t, f, dir)
	ctx := t.Context()
	if n := w.park(ctx); n != 0 {
		t.Fatalf("parked %d at once", n)
	}
	*now = now.Add(9 * time.Minute)
	if _, err := w.Exec(ctx, runtime.ExecRequest{Name: "box"}, runtime.ExecIO{Stdout: discard{}}); err != nil {
		t.Fatal(err)
	}
	*now = now.Add(9 * time.Minute)
	if n := w.park(ctx); n != 0 {
		t.Fatalf("parked %d that was used 9 minutes ago", n)
	}
	*now = now.Add(time.Minute)
	if n := w.park(ctx); n != 1 {
		t.Fatalf("parked %d, want 1", n)
	}
	if b, _ := f.box("box"); b.State != runtime.Stopped {
		t.Errorf("got %s, want stopped", b.State)
	}
	calls := strings.Join(f.calls, "\n")
	pause, commit, stop := strings.Index(calls, "Pause \"box\""), strings.Index(calls, "Commit {\"Name\":\"box\""), strings.Index(calls, "Stop {\"Name\":\"box\"")
	if pause < 0 || commit < pause || stop < commit {
		t.Errorf("got calls\n%s\nwant pause, commit, stop", calls)
	}

	// Another server finds it, and a request brings it back.
	other, _ := parking(t, f, dir)
	if _, err := other.StatPath(ctx, "box", "/"); err != nil {
		t.Fatal(err)
	}
	if c := f.called("Checkout"); len(c) != 1 || !strings.Contains(c[0], `"Ref":"branch/box"`) {
		t.Errorf("got checkouts %s, want one of its branch", c)
	}
	if third, _ := parking(t, f, dir); third.isParked("box") {
		t.Error("it is still marked after it was woken")
	}
}

func TestWhatIsUsedIsNotParked(t *testing.T) {
	f := newFake()
	w, now := parking(t, f, "")
	ctx := t.Context()
	w.park(ctx)
	*now = now.Add(time.Hour)
	if n := w.park(ctx); n != 0 {
		t.Errorf("parked %d in spite of a background process", n)
	}
	f.process.Running = false
	done, err := w.use(ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	*now = now.Add(time.Hour)
	if n := w.park(ctx); n != 0 {
		t.Errorf("parked %d during a long call", n)
	}
	done()
	*now = now.Add(time.Hour)
	f.fails["Commit"] = runtime.ErrHost
	if n := w.park(ctx); n != 0 {
		t.Errorf("parked %d although the commit failed", n)
	}
	if b, _ := f.box("box"); b.State != runtime.Running {
		t.Errorf("got %s after a failed commit, want running again", b.State)
	}
}

// TestMarkersOfOthersAreVoid: what somebody else started is not put back.
func TestMarkersOfOthersAreVoid(t *testing.T) {
	f := newFake()
	f.process.Running = false
	w, now := parking(t, f, t.TempDir())
	ctx := t.Context()
	w.park(ctx)
	*now = now.Add(time.Hour)
	if n := w.park(ctx); n != 1 {
		t.Fatalf("parked %d, want 1", n)
	}
	f.set("box", runtime.Running) // by a shell
	if _, err := w.StatPath(ctx, "box", "/"); err != nil {
		t.Fatal(err)
	}
	if c := f.called("Checkout"); len(c) != 0 || w.isParked("box") {
		t.Errorf("got checkouts %s, want none, and no marker", c)
	}
	// Stopped and removed ones are forgotten.
	*now = now.Add(time.Hour)
	w.park(ctx)
	if err := w.Remove(ctx, "box", true); err != nil || w.isParked("box") {
		t.Errorf("removed: %v, marked: %v", err, w.isParked("box"))
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
