package runtime

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// archive makes a tar of files ("name=content") and links ("name->target").
func archive(t *testing.T, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Mode: 0o644}
		content := ""
		if name, target, ok := strings.Cut(e, "->"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, name, target
		} else {
			h.Name, content, _ = strings.Cut(e, "=")
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpackContext(t *testing.T) {
	h := newHost(t)
	whole := archive(t, "Dockerfile=FROM x", "docker/Dockerfile.dev=FROM dev", "link->docker/Dockerfile.dev", "out->/etc/passwd", "up->../../../../etc/passwd")
	var gz, zs bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(whole)
	w.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(whole)
	z.Close()
	tests := []struct {
		name       string
		stream     []byte
		dockerfile string
		want       string // its text; empty: refused
	}{
		{"plain", whole, "", "FROM x"},
		{"gzip", gz.Bytes(), "", "FROM x"},
		{"zstd", zs.Bytes(), "docker/Dockerfile.dev", "FROM dev"},
		{"a link inside", whole, "./link", "FROM dev"},
		{"a link to the host", whole, "out", ""},
		{"a link out", whole, "up", ""},
		{"a path out", whole, "../../../../../../etc/passwd", ""},
		{"a directory", whole, "docker", ""},
		{"no such file", whole, "none", ""},
		{"no Dockerfile", archive(t, "a=b"), "", ""},
		{"an entry that climbs", archive(t, "Dockerfile=FROM x", "../evil=x"), "", ""},
		{"an entry through a link", archive(t, "Dockerfile=FROM x", "l->/tmp", "l/evil=x"), "", ""},
		{"cut off", whole[:515], "", ""},
		{"cut off, gzip", gz.Bytes()[:60], "", ""},
		{"a Dockerfile alone", []byte("FROM alone\n"), "", "FROM alone\n"},
		{"a Dockerfile alone, another asked for", []byte("FROM alone\n"), "x", ""},
		{"nothing", nil, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tmp, dockerfile, err := h.unpackContext(t.Context(), BuildRequest{Context: bytes.NewReader(tt.stream), Dockerfile: tt.dockerfile})
			if tt.want == "" {
				if err == nil {
					t.Error("no error")
				} else if tt.name != "cut off, gzip" && !errors.Is(err, ErrUsage) {
					t.Errorf("not the sender's fault: %v", err)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				got, err := os.ReadFile(dockerfile)
				if err != nil || string(got) != tt.want {
					t.Errorf("Dockerfile: got %q, %v", got, err)
				}
				if err := tmp.remove(); err != nil {
					t.Error(err)
				}
			}
			if names, _ := filepath.Glob(h.tmp() + "/*"); len(names) > 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}
