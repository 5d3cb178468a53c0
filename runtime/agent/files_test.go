package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// TestCopy checks that the rules of tartree arrive; the table is there.
func TestCopy(t *testing.T) {
	noLeak(t)
	host, inside := t.TempDir(), t.TempDir()
	c, _ := startHere(t, guest.Options{})
	must(t, os.MkdirAll(host+"/tree/sub", 0o750))
	must(t, os.WriteFile(host+"/tree/sub/f", []byte("data"), 0o640))
	must(t, os.Symlink("tree", host+"/link"))
	must(t, os.Mkdir(inside+"/dir", 0o755))

	in := func(src, dst string, o agent.CopyOptions) error {
		return c.CopyIn(testContext(t), host+src, inside+dst, o)
	}
	must(t, in("/tree", "/new", agent.CopyOptions{}))
	must(t, in("/tree", "/dir", agent.CopyOptions{}))
	must(t, in("/tree/.", "/dir", agent.CopyOptions{}))
	must(t, in("/tree/sub/f", "/dir/file", agent.CopyOptions{}))
	must(t, in("/link", "/aslink", agent.CopyOptions{}))
	must(t, in("/link", "/astree", agent.CopyOptions{FollowLink: true}))
	must(t, in("/link/", "/slash", agent.CopyOptions{}))
	for _, p := range []string{"/new/sub/f", "/dir/tree/sub/f", "/dir/sub/f", "/dir/file", "/astree/sub/f", "/slash/sub/f"} {
		if got := content(t, inside+p); got != "data" {
			t.Errorf("%s: %q", p, got)
		}
	}
	if target, _ := os.Readlink(inside + "/aslink"); target != "tree" {
		t.Errorf("link → %q", target)
	}

	back := t.TempDir()
	must(t, c.CopyOut(testContext(t), inside+"/new", back+"/got", agent.CopyOptions{}))
	must(t, c.CopyOut(testContext(t), inside+"/new/sub/f", back, agent.CopyOptions{}))
	must(t, c.CopyOut(testContext(t), inside+"/new/.", back, agent.CopyOptions{}))
	for _, p := range []string{"/got/sub/f", "/f", "/sub/f"} {
		if got := content(t, back+p); got != "data" {
			t.Errorf("%s: %q", p, got)
		}
	}
	if fi, _ := os.Stat(back + "/got/sub/f"); fi.Mode() != 0o640 {
		t.Errorf("mode %v", fi.Mode())
	}

	var remote *agent.RemoteError
	failures := []struct {
		name string
		err  error
		code string // "" is an error of this side
		want string
	}{
		{"source missing", in("/none", "/x", agent.CopyOptions{}), "", "no such file"},
		{"parent missing", in("/tree", "/no/such", agent.CopyOptions{}), proto.CodeNotFound, "no such file"},
		{"directory over a file", in("/tree", "/dir/file", agent.CopyOptions{}), proto.CodeExists, "cannot replace"},
		{"missing in the guest", c.CopyOut(testContext(t), inside+"/none", back+"/x", agent.CopyOptions{}), proto.CodeNotFound, "no such file"},
		{"no place here", c.CopyOut(testContext(t), inside+"/new", back+"/no/such", agent.CopyOptions{}), "", "no such file"},
		{"file over a directory", c.CopyOut(testContext(t), inside+"/new/sub/f", back+"/f/", agent.CopyOptions{}), "", "not a directory"},
	}
	for _, f := range failures {
		if f.err == nil || !strings.Contains(f.err.Error(), f.want) || errors.As(f.err, &remote) != (f.code != "") || f.code != "" && remote.Code != f.code {
			t.Errorf("%s: got %v", f.name, f.err)
		}
	}
	if _, err := os.Lstat(back + "/x"); err == nil {
		t.Error("a failed copy left something")
	}
}

func TestPutStream(t *testing.T) {
	noLeak(t)
	dst := t.TempDir() // removed after the agent has ended
	c, _ := startHere(t, guest.Options{})
	one := func(name, body string) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), Uid: os.Getuid(), Gid: os.Getgid()}))
		io.WriteString(w, body)
		must(t, w.Close())
		return &b
	}
	must(t, c.Put(testContext(t), agent.PutRequest{Path: dst}, one("a", "x")))
	must(t, c.Put(testContext(t), agent.PutRequest{Path: dst + "/made/for/it", Parents: true}, one("b", "y")))
	if content(t, dst+"/a") != "x" || content(t, dst+"/made/for/it/b") != "y" {
		t.Error("wrong content")
	}
	var remote *agent.RemoteError
	err := c.Put(testContext(t), agent.PutRequest{Path: dst}, one("../up", "x"))
	if !errors.As(err, &remote) || remote.Code != proto.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if err := c.Put(testContext(t), agent.PutRequest{Path: "relative"}, one("a", "")); !errors.As(err, &remote) || remote.Code != proto.CodeInvalid {
		t.Errorf("got %v", err)
	}
	// The guest refuses while the sender has a lot more to say.
	err = c.Put(testContext(t), agent.PutRequest{Path: dst + "/none"}, io.MultiReader(one("a", "x"), zeroes{}))
	if !errors.As(err, &remote) || remote.Code != proto.CodeNotFound {
		t.Errorf("got %v", err)
	}
	// The sender's source breaks.
	boom := errors.New("disk on fire")
	err = c.Put(testContext(t), agent.PutRequest{Path: dst}, io.MultiReader(io.LimitReader(one("half", strings.Repeat("h", 1<<20)), 1<<19), failing{boom}))
	if !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	eventually(t, func() error {
		names, _ := os.ReadDir(dst)
		for _, n := range names {
			if n.Name() != "a" && n.Name() != "made" {
				return fmt.Errorf("%s is left", n.Name())
			}
		}
		return nil
	})
	// And the receiver's end.
	if err := c.Get(testContext(t), agent.GetRequest{Path: "/usr/bin"}, failing{boom}); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Get(ctx, agent.GetRequest{Path: "/usr/bin"}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestLargeFiles: memory stays flat however large a file is, both ways.
func TestLargeFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 512 MiB twice")
	}
	p := startProcess(t)
	dir := t.TempDir()
	f, err := os.Create(dir + "/large")
	must(t, err)
	block := make([]byte, 8<<20)
	rand.Read(block)
	for range 8 {
		_, err := f.Write(block)
		must(t, err)
	}
	must(t, f.Truncate(512<<20)) // the rest is a hole
	must(t, f.Close())
	guestBefore, hereBefore := resident(t, p.pid), resident(t, os.Getpid())
	start := time.Now()
	must(t, p.CopyIn(testContext(t), dir+"/large", dir+"/in", agent.CopyOptions{}))
	must(t, p.CopyOut(testContext(t), dir+"/in", dir+"/out", agent.CopyOptions{}))
	t.Logf("512 MiB there and back in %v", time.Since(start).Round(time.Millisecond))
	guestGrown, hereGrown := resident(t, p.pid)-guestBefore, resident(t, os.Getpid())-hereBefore
	if guestGrown > 8<<10 || hereGrown > 8<<10 {
		t.Errorf("memory grew by %d KiB in the agent and %d KiB here", guestGrown, hereGrown)
	}
	var st unix.Stat_t
	must(t, unix.Stat(dir+"/out", &st))
	if st.Size != 512<<20 || st.Blocks*512 > 80<<20 {
		t.Errorf("size %d, %d on disk", st.Size, st.Blocks*512)
	}
	out, err := os.Open(dir + "/out")
	must(t, err)
	defer out.Close()
	got := make([]byte, len(block))
	for range 8 {
		if _, err := io.ReadFull(out, got); err != nil || !bytes.Equal(got, block) {
			t.Fatal("content differs", err)
		}
	}
}

func TestNoSpace(t *testing.T) {
	testlane.Need(t, testlane.Root)
	c, _ := startHere(t, guest.Options{})
	small, big := t.TempDir(), t.TempDir()+"/big"
	must(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(small, unix.MNT_DETACH)
	must(t, os.WriteFile(big, bytes.Repeat([]byte("x"), 40<<20), 0o644))
	var remote *agent.RemoteError
	err := c.CopyIn(testContext(t), big, small+"/big", agent.CopyOptions{})
	if !errors.As(err, &remote) || remote.Code != proto.CodeNoSpace || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("got %v", err)
	}
	if names, _ := os.ReadDir(small); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestStat(t *testing.T) {
	c, _ := startHere(t, guest.Options{})
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/f", []byte("four"), 0o600))
	must(t, syscall.Chmod(dir+"/f", 0o4711))
	must(t, os.Symlink("f", dir+"/l"))
	st, err := c.Stat(testContext(t), dir+"/f")
	if err != nil || st.Name != "f" || st.Size != 4 || st.Mode != unix.S_IFREG|0o4711 || st.UID != os.Getuid() || st.IsDir() || time.Since(st.MTime) > time.Minute {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err = c.Stat(testContext(t), dir+"/l"); err != nil || st.LinkTarget != "f" {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err = c.StatTarget(testContext(t), dir+"/l"); err != nil || st.Size != 4 || st.LinkTarget != "" {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err = c.Stat(testContext(t), dir); err != nil || !st.IsDir() {
		t.Errorf("got %+v, %v", st, err)
	}
	var remote *agent.RemoteError
	if _, err := c.Stat(testContext(t), filepath.Join(dir, "none")); !errors.As(err, &remote) || remote.Code != proto.CodeNotFound {
		t.Errorf("got %v", err)
	}
}
