package builder

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/buildkit/client"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

func sorted(list []string) []string {
	sort.Strings(list)
	return list
}

// tarOf is a tar of a directory's regular files and directories.
func tarOf(t *testing.T, dir string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(st, "")
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(dir, p); err != nil {
			return err
		}
		if err := w.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// tarOfEntries is a tar with exactly these headers; contents by name.
func tarOfEntries(t *testing.T, entries []tar.Header, contents map[string]string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		text := contents[h.Name]
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// transferring is the report of an upload.
func transferring(vertex string, completed bool) *client.SolveStatus {
	s := &client.VertexStatus{ID: "transferring context:", Vertex: digest.FromString(vertex)}
	if completed {
		now := time.Now()
		s.Completed = &now
	}
	return &client.SolveStatus{Statuses: []*client.VertexStatus{s}}
}

func mustTag(t *testing.T, s string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func tarOfFile(t *testing.T, name, text string) []byte {
	t.Helper()
	return tarOfEntries(t, []tar.Header{{Name: name}}, map[string]string{name: text}).Bytes()
}

// readXattrs returns the extended attributes of a file.
func readXattrs(p string) (map[string]string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(p, list)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range strings.Split(string(list[:n]), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil {
			return nil, err
		}
		out[name] = string(value[:n])
	}
	return out, nil
}
