package agent_test

import (
	"archive/tar"
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

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

func code(err error) string {
	var remote *agent.RemoteError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &remote):
		return remote.Code
	}
	return err.Error()
}

func TestDirectories(t *testing.T) {
	r := startProcess(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, f := range []string{"file", "bad\xff"} {
		if err := os.WriteFile(path(f), []byte("abc"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("to\xffgo", path("link")); err != nil {
		t.Fatal(err)
	}
	mkdir := func(name string, mode uint32, parents bool) string {
		return code(r.MakeDir(t.Context(), proto.MakeDirRequest{Path: path(name), Mode: mode, Parents: parents}))
	}
	remove := func(name string, recursive bool) string {
		return code(r.Remove(t.Context(), proto.RemoveRequest{Path: path(name), Recursive: recursive}))
	}
	for _, tt := range []struct{ what, got, want string }{
		{"make", mkdir("d", 0o2770, false), ""},
		{"make again", mkdir("d", 0o700, false), proto.CodeExists},
		{"make again with parents", mkdir("d", 0o700, true), ""},
		{"make over a file", mkdir("file", 0o700, true), proto.CodeExists},
		{"make below a file", mkdir("file/x/y", 0o700, true), proto.CodeInvalid},
		{"make without parent", mkdir("no/x", 0o700, false), proto.CodeNotFound},
		{"make with parents", mkdir("p/q/r", 0o700, true), ""},
		{"remove full", remove("p", false), proto.CodeInvalid},
		{"remove tree", remove("p", true), ""},
		{"remove missing", remove("p", true), proto.CodeNotFound},
		{"remove the root", code(r.Remove(t.Context(), proto.RemoveRequest{Path: "/../", Recursive: true})), proto.CodeInvalid},
		{"remove file", remove("file", false), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %q want %q", tt.what, tt.got, tt.want)
		}
	}
	list, err := r.List(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprintf("%s %o %v %s", f.Name, f.Mode, f.IsDir(), f.LinkTarget))
	}
	slices.Sort(got)
	if want := []string{"bad\xff 100640 false ", "d 42770 true ", "link 120777 false to\xffgo"}; !slices.Equal(got, want) {
		t.Errorf("list: got %q want %q", got, want)
	}
	if _, err := r.List(t.Context(), path("bad")); code(err) != proto.CodeNotFound {
		t.Errorf("list of nothing: %v", err)
	}
	// More than fits into one answer of JSON.
	for i := range 12000 {
		if err := os.WriteFile(fmt.Sprintf("%s/d/%0100d", dir, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := r.List(t.Context(), path("d")); err != nil || len(list) != 12000 {
		t.Errorf("long list: %d, %v", len(list), err)
	}
}

// watching collects the changes that watch tells while change makes them.
func watching(t *testing.T, r *remote, path string, recursive bool, change func()) ([]proto.FileEvent, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	started := make(chan struct{})
	go func() {
		select {
		case <-started:
			change()
			os.WriteFile(filepath.Join(path, "last"), nil, 0o600)
		case <-ctx.Done():
		}
	}()
	enough := errors.New("enough")
	var seen []proto.FileEvent
	err := r.Watch(ctx, proto.WatchRequest{Path: path, Recursive: recursive}, func() { close(started) }, func(e proto.FileEvent) error {
		if filepath.Base(e.Path) == "last" {
			return enough
		}
		seen = append(seen, e)
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return seen, err
}

func TestWatch(t *testing.T) {
	r := startProcess(t)
	dir := t.TempDir()
	os.MkdirAll(dir+"/sub/deep", 0o755)
	os.MkdirAll(dir+"/away/in", 0o755)
	var put bytes.Buffer
	w := tar.NewWriter(&put)
	w.WriteHeader(&tar.Header{Name: "put", Mode: 0o644, Size: 4})
	w.Write([]byte("text"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	seen, err := watching(t, r, dir, true, func() {
		os.WriteFile(dir+"/sub/deep/f", []byte("x"), 0o600)
		os.Chmod(dir+"/sub/deep/f", 0o644)
		os.Rename(dir+"/sub/deep/f", dir+"/sub/g")
		os.Remove(dir + "/sub/g")
		os.Mkdir(dir+"/new", 0o755)
		time.Sleep(200 * time.Millisecond)
		os.WriteFile(dir+"/new/h", nil, 0o600)
		os.WriteFile(dir+"/new/bad\xff", nil, 0o600)
		// A tree that is moved is watched where it is now.
		os.Rename(dir+"/away", dir+"/here")
		time.Sleep(200 * time.Millisecond)
		os.WriteFile(dir+"/here/in/i", nil, 0o600)
		if err := r.Put(t.Context(), agent.PutRequest{Path: dir}, &put); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range seen {
		line := e.Op + " " + strings.TrimPrefix(e.Path, dir)
		if e.IsDir {
			line += "/"
		}
		got = append(got, line)
	}
	want := []string{
		"create /sub/deep/f", "write /sub/deep/f", "attributes /sub/deep/f",
		"rename /sub/deep/f", "create /sub/g", "remove /sub/g",
		"create /new/", "create /new/h", "create /new/bad\xff",
		"rename /away/", "create /here/", "create /here/in/", "create /here/in/i",
		"create /put", // whole, whatever it was called while it came
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	flat, err := watching(t, r, dir, false, func() { os.WriteFile(dir+"/sub/z", nil, 0o600) })
	if err != nil || len(flat) > 0 {
		t.Errorf("not recursive: %v, %v", flat, err)
	}
}

// TestWatchOverflow: what is lost is told, and what comes later is seen.
func TestWatchOverflow(t *testing.T) {
	r := startProcess(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	started, flooded := make(chan struct{}), make(chan struct{})
	go func() {
		<-started
		var names [2]string // in turn: the kernel joins equal events
		for i := range names {
			names[i] = fmt.Sprintf("%s/%0200d", dir, i)
			os.WriteFile(names[i], nil, 0o600)
		}
		for i := range 100000 {
			os.Chmod(names[i%2], 0o600)
		}
		os.MkdirAll(dir+"/late/later", 0o700)
		close(flooded)
	}()
	overflow := false
	enough := errors.New("enough")
	err := r.Watch(ctx, proto.WatchRequest{Path: dir, Recursive: true}, func() { close(started) }, func(e proto.FileEvent) error {
		switch {
		case e.Op == proto.OpOverflow && !overflow:
			overflow = true
			go func() {
				for ctx.Err() == nil {
					os.WriteFile(dir+"/late/later/f", []byte("x"), 0o600)
					time.Sleep(50 * time.Millisecond)
				}
			}()
		case strings.HasSuffix(e.Path, "/late/later/f") && overflow:
			return enough
		case !overflow:
			<-flooded // a reader as slow as can be
		}
		return nil
	})
	if !errors.Is(err, enough) || !overflow {
		t.Errorf("overflow told %v, %v", overflow, err)
	}
}

// TestWatchEnds: with the path, with the client, and for what is not there.
func TestWatchEnds(t *testing.T) {
	r := startProcess(t)
	dir := t.TempDir()
	file := dir + "/file"
	os.WriteFile(file, nil, 0o600)
	var seen []string
	err := r.Watch(t.Context(), proto.WatchRequest{Path: file}, func() {
		os.WriteFile(file, []byte("x"), 0o600)
		os.Remove(file)
	}, func(e proto.FileEvent) error { seen = append(seen, e.Op); return nil })
	if code(err) != proto.CodeNotFound || !slices.Contains(seen, proto.OpWrite) || seen[len(seen)-1] != proto.OpRemove {
		t.Errorf("a file that went: %q, %v", seen, err)
	}
	if err := r.Watch(t.Context(), proto.WatchRequest{Path: file}, nil, nil); code(err) != proto.CodeNotFound {
		t.Errorf("nothing: %v", err)
	}
	before := descriptors(t, r.pid)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.Watch(ctx, proto.WatchRequest{Path: dir}, cancel, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); descriptors(t, r.pid) > before+1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the agent has %d descriptors, %d before", descriptors(t, r.pid), before)
		}
	}
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
