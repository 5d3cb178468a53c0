package builder

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newStore opens a store with a clock that goes on by a minute each time it is
// looked at.
func newStore(t *testing.T) *store {
	t.Helper()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s, err := openStore(t.TempDir(), slog.New(slog.DiscardHandler), func() time.Time {
		now = now.Add(time.Minute)
		return now
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put adds an image whose root file system is a text.
func put(t *testing.T, s *store, text string, c Config, names ...string) Image {
	t.Helper()
	dir, release, err := s.tempDir()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := os.WriteFile(filepath.Join(dir, rootfsFile), []byte(text), 0o444); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, rootfsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digest, err := digestSparse(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	for k, n := range names {
		if names[k], err = ParseName(n); err != nil {
			t.Fatal(err)
		}
	}
	img, err := s.add(dir, rootfsInfo{Format: rootfsFormat, Digest: digest, ContentBytes: int64(len(text))}, "amd64", c, names)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestStoreFinds(t *testing.T) {
	s := newStore(t)
	a := put(t, s, "a", Config{}, "debian:bookworm", "debian:latest")
	b := put(t, s, "b", Config{Cmd: []string{"x"}}, "registry.example/team/app:v1")
	if a.ID == b.ID || !isDigest(a.ID) {
		t.Errorf("ids %s %s", a.ID, b.ID)
	}
	for asked, want := range map[string]string{
		"debian": a.ID, "debian:bookworm": a.ID, "docker.io/library/debian:bookworm": a.ID, "docker.io/debian": a.ID,
		a.ID: a.ID, strings.TrimPrefix(a.ID, "sha256:"): a.ID, a.ID[:7+8]: a.ID, a.ID[7 : 7+8]: a.ID,
		"registry.example/team/app:v1": b.ID,
	} {
		if img, err := s.find(asked); err != nil || img.ID != want {
			t.Errorf("%s: got %s %v, want %s", asked, img.ID, err, want)
		}
	}
	for asked, want := range map[string]error{
		"debian:trixie": ErrImageNotFound, "app:v1": ErrImageNotFound, "ffffffffff": ErrImageNotFound, "sha256:" + strings.Repeat("0", 64): ErrImageNotFound,
		"": ErrInvalidName, "Debian": ErrInvalidName, "a b": ErrInvalidName, "../images": ErrInvalidName, "sha256:abc": ErrImageNotFound,
	} {
		if img, err := s.find(asked); !errors.Is(err, want) {
			t.Errorf("%q: got %s %v, want %v", asked, img.ID, err, want)
		}
	}
	_, err := s.find("debian:trixie")
	var h interface{ Hint() string }
	if !errors.As(err, &h) || !strings.Contains(h.Hint(), "image bootstrap debian:trixie") {
		t.Errorf("hint of %v", err)
	}
	images, err := s.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(images) != 2 || images[0].ID != b.ID {
		t.Errorf("the newest is not the first: %v", images)
	}
	if diff := cmp.Diff([]string{"debian:bookworm", "debian:latest"}, images[1].Names); diff != "" {
		t.Error(diff)
	}
}

func TestStoreIsContentAddressed(t *testing.T) {
	s := newStore(t)
	c := Config{Env: []string{"A=b"}, Labels: map[string]string{"x": "1", "a": "2"}}
	first := put(t, s, "text", c, "one")
	again := put(t, s, "text", Config{Env: []string{"A=b"}, Labels: map[string]string{"a": "2", "x": "1"}}, "two")
	if first.ID != again.ID || !first.Created.Equal(again.Created) {
		t.Errorf("equal content: got %s %v, then %s %v", first.ID, first.Created, again.ID, again.Created)
	}
	if diff := cmp.Diff([]string{"one:latest", "two:latest"}, again.Names); diff != "" {
		t.Error(diff)
	}
	for name, other := range map[string]Image{
		"text":   put(t, s, "texT", c),
		"config": put(t, s, "text", Config{Env: []string{"A=c"}}),
	} {
		if other.ID == first.ID {
			t.Errorf("other %s, same id", name)
		}
	}
	// A vector: ids are in commits and must not change with the program.
	id, err := imageID("sha256:"+strings.Repeat("ab", 32), "amd64", Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}, User: "1", ExposedPorts: []string{"80/tcp"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:3fab2409c37b4f76292917c86a4d5115a35540a143ea4c87901fe43bc7551b90"; id != want {
		t.Errorf("got %s, want %s", id, want)
	}
}

func TestStoreRemoves(t *testing.T) {
	s := newStore(t)
	b := &Builder{store: s}
	img := put(t, s, "a", Config{}, "one", "two")
	if err := b.Remove(t.Context(), "one", func(string) error { return errors.New("asked too early") }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Image(t.Context(), "one"); !errors.Is(err, ErrImageNotFound) {
		t.Errorf("the name is still there: %v", err)
	}
	busy := errors.New("in use by sandbox x")
	if err := b.Remove(t.Context(), "two", func(id string) error {
		if id != img.ID {
			t.Errorf("asked about %s", id)
		}
		return busy
	}); !errors.Is(err, busy) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(img.RootfsPath); err != nil {
		t.Errorf("a refused removal removed: %v", err)
	}
	if err := b.Tag(t.Context(), "two", "three"); err != nil {
		t.Fatal(err)
	}
	if err := b.Remove(t.Context(), img.ID[:20], nil); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range left {
		names = append(names, filepath.Base(p))
	}
	if diff := cmp.Diff([]string{"blobs", "blobs.lock", "lock", "names"}, names); diff != "" {
		t.Errorf("(-want +left):\n%s", diff)
	}
	if all, err := s.names(); err != nil || len(all) != 0 {
		t.Errorf("names are left: %v %v", all, err)
	}
	if err := b.Remove(t.Context(), "two", nil); !errors.Is(err, ErrImageNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestStoreTags(t *testing.T) {
	s := newStore(t)
	b := &Builder{store: s}
	one := put(t, s, "1", Config{}, "one")
	two := put(t, s, "2", Config{}, "two")
	if err := b.Tag(t.Context(), "one", "two"); err != nil {
		t.Fatal(err)
	}
	got, err := b.Image(t.Context(), "two")
	if err != nil || got.ID != one.ID {
		t.Errorf("got %s %v", got.ID, err)
	}
	if got, err = b.Image(t.Context(), two.ID); err != nil || len(got.Names) != 0 {
		t.Errorf("the other image has names %v %v", got.Names, err)
	}
	for _, bad := range []string{"", "UPPER", "a/../b", "a:b:c", "x@" + one.ID, strings.Repeat("n", 200), "a\x00b", localDomain + "/x"} {
		if err := b.Tag(t.Context(), "one", bad); !errors.Is(err, ErrInvalidName) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// Hazard 14: whatever a kill left, nothing half-made is ever seen, and a sweep
// clears it away.
func TestStoreSweeps(t *testing.T) {
	s := newStore(t)
	img := put(t, s, "a", Config{}, "kept")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// An image whose removal was cut off after the record, with its name.
	dead := put(t, s, "b", Config{}, "dead")
	check(os.Remove(filepath.Join(s.imageDir(dead.ID), recordFile)))
	// A temporary directory of a dead process, and one that is in use.
	check(os.MkdirAll(filepath.Join(s.temp, tempPrefix+"dead", "sub"), 0o700))
	check(os.WriteFile(filepath.Join(s.temp, tempPrefix+"dead", rootfsFile), []byte("half"), 0o400))
	live, release, err := s.tempDir()
	check(err)
	// What others keep there is not ours.
	check(os.Mkdir(filepath.Join(s.temp, "other"), 0o700))
	// A blob cut off, and one that nobody refers to.
	check(os.WriteFile(filepath.Join(s.blobsDir(), newBlob+"123"), []byte("half"), 0o600))
	orphan, err := s.putBlob([]byte("orphan"))
	check(err)
	kept, err := s.putBlob([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":1,"mediaType":"x"},"layers":[]}`))
	check(err)
	check(s.recordManifest(img.ID, kept))

	if images, err := s.list(t.Context()); err != nil || len(images) != 1 {
		t.Errorf("got %v %v", images, err)
	}
	if _, err := s.find("dead"); !errors.Is(err, ErrImageNotFound) {
		t.Errorf("got %v", err)
	}
	check(s.sweep())
	for p, want := range map[string]bool{
		s.imageDir(dead.ID):                        false,
		filepath.Join(s.namesDir(), "dead:latest"): false,
		filepath.Join(s.temp, tempPrefix+"dead"):   false,
		live:                                       true,
		filepath.Join(s.temp, "other"):             true,
		filepath.Join(s.blobsDir(), newBlob+"123"): false,
		s.blobPath(orphan):                         false,
		s.blobPath(kept):                           true,
		img.RootfsPath:                             true,
	} {
		if _, err := os.Lstat(p); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", p, err == nil, want)
		}
	}
	release()
	if _, err := os.Lstat(live); err == nil {
		t.Error("a released directory is still there")
	}
	// While somebody writes blobs, none is swept.
	drop, err := s.holdBlobs()
	check(err)
	fresh, err := s.putBlob([]byte("being imported"))
	check(err)
	check(s.sweep())
	if _, err := os.Stat(s.blobPath(fresh)); err != nil {
		t.Error("a blob that is being imported was swept")
	}
	drop()
}

// An image that cannot be read must not hide the others.
func TestStoreWithBrokenImage(t *testing.T) {
	s := newStore(t)
	good := put(t, s, "good", Config{}, "good")
	bad := put(t, s, "bad", Config{}, "bad")
	if err := os.WriteFile(filepath.Join(s.imageDir(bad.ID), recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if images, err := s.list(t.Context()); err != nil || len(images) != 1 || images[0].ID != good.ID {
		t.Errorf("got %v %v", images, err)
	}
	if _, err := s.find("bad"); err == nil || errors.Is(err, ErrImageNotFound) {
		t.Errorf("got %v", err)
	}
	if err := s.sweep(); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if _, err := os.Stat(bad.RootfsPath); err != nil {
		t.Error("a broken image was swept away")
	}
}

func TestVerify(t *testing.T) {
	s := newStore(t)
	b := &Builder{store: s}
	img := put(t, s, "content", Config{}, "good")
	if err := b.Verify(t.Context(), "good"); err != nil {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(img.RootfsPath, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(img.RootfsPath, []byte("cOntent"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context(), "good"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(img.RootfsPath); err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context(), "good"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestStoreAmbiguousPrefix(t *testing.T) {
	s := newStore(t)
	seen := map[string]bool{}
	for k := range 3000 {
		id, err := imageID(fmt.Sprint(k), "amd64", Config{})
		if err != nil {
			t.Fatal(err)
		}
		prefix := id[7:11]
		dir := s.imageDir(id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if seen[prefix] {
			if _, err := s.find(prefix); !errors.Is(err, ErrAmbiguous) {
				t.Errorf("got %v", err)
			}
			return
		}
		seen[prefix] = true
	}
	t.Fatal("no two ids with the same prefix")
}

func TestParseName(t *testing.T) {
	for name, want := range map[string]string{
		"debian": "debian:latest", "debian:12": "debian:12", "docker.io/library/debian:12": "debian:12", "a/b": "a/b:latest",
		"localhost:5000/x": "localhost:5000/x:latest", "host.example/a/b_c-d.e:T.g": "host.example/a/b_c-d.e:T.g",
	} {
		got, err := ParseName(name)
		if err != nil || got != want {
			t.Errorf("%s: got %s %v, want %s", name, got, err, want)
		}
		n, tag := SplitName(got)
		if n+":"+tag != got || strings.Contains(tag, "/") {
			t.Errorf("%s splits into %q and %q", got, n, tag)
		}
	}
	for _, bad := range []string{"", ":", "a:", ":b", "A", "a b", "a//b", "/a", "a/", "..", "a/..", "-a", "a\n", strings.Repeat("a", 64)} {
		if got, err := ParseName(bad); !errors.Is(err, ErrInvalidName) {
			t.Errorf("%q: got %q %v", bad, got, err)
		}
	}
}
