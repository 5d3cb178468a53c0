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
		context    string
	}{
		{"plain", whole, "", "FROM x", ""},
		{"gzip", gz.Bytes(), "", "FROM x", ""},
		{"zstd", zs.Bytes(), "docker/Dockerfile.dev", "FROM dev", ""},
		{"a link inside", whole, "./link", "FROM dev", ""},
		{"a link to the host", whole, "out", "", ""},
		{"a link out", whole, "up", "", ""},
		{"a path out", whole, "../../../../../../etc/passwd", "", ""},
		{"a directory", whole, "docker", "", ""},
		{"no such file", whole, "none", "", ""},
		{"no Dockerfile", archive(t, "a=b"), "", "", ""},
		{"an entry that climbs", archive(t, "Dockerfile=FROM x", "../evil=x"), "", "", ""},
		{"an entry through a link", archive(t, "Dockerfile=FROM x", "l->/tmp", "l/evil=x"), "", "", ""},
		{"cut off", whole[:515], "", "", ""},
		{"cut off, gzip", gz.Bytes()[:60], "", "", ""},
		{"a Dockerfile alone", []byte("FROM alone\n"), "", "FROM alone\n", ""},
		{"a Dockerfile alone, another asked for", []byte("FROM alone\n"), "x", "", ""},
		{"nothing", nil, "", "", ""},
		{"a context within", archive(t, "c/Dockerfile=FROM c", "x=y"), "", "FROM c", "c"},
		{"a Dockerfile beside it", archive(t, "c/Dockerfile=FROM c", "d/Dev=FROM d"), "d/Dev", "FROM d", "c"},
		{"a context that is not there", whole, "", "", "none"},
		{"a context that is a link to the host", archive(t, "c->/etc", "d/Dev=FROM d"), "d/Dev", "", "c"},
		{"a context behind a link", archive(t, "c->/", "d/Dev=FROM d"), "d/Dev", "", "c/etc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tmp, q, err := h.unpackContext(t.Context(), BuildRequest{Context: bytes.NewReader(tt.stream), ContextPath: tt.context, Dockerfile: tt.dockerfile})
			if tt.want == "" {
				if err == nil {
					t.Error("no error")
				} else if tt.name != "cut off, gzip" && !errors.Is(err, ErrUsage) {
					t.Errorf("not the sender's fault: %v", err)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				dockerfile := q.Dockerfile
				if dockerfile == "" {
					dockerfile = filepath.Join(q.ContextDir, "Dockerfile")
				}
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

func TestNamedContextsOfAStream(t *testing.T) {
	h := newHost(t)
	stream := archive(t, "c/Dockerfile=FROM c", "n/a=b", "out->/etc")
	build := func(contexts map[string]string) (BuildRequest, error) {
		tmp, q, err := h.unpackContext(t.Context(), BuildRequest{Context: bytes.NewReader(stream), ContextPath: "c", BuildContexts: contexts})
		if err == nil {
			t.Cleanup(func() { tmp.remove() })
		}
		return q, err
	}
	q, err := build(map[string]string{"n": "./n", "base": "docker-image://debian"})
	if err != nil || q.BuildContexts["base"] != "docker-image://debian" {
		t.Fatalf("got %v, %v", q.BuildContexts, err)
	}
	if got, err := os.ReadFile(q.BuildContexts["n"] + "/a"); err != nil || string(got) != "b" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, source := range []string{"./out", "./../../..", "./none", "./n/a"} {
		if q, err := build(map[string]string{"n": source}); !errors.Is(err, ErrUsage) && !strings.HasPrefix(q.BuildContexts["n"], q.ContextDir[:len(q.ContextDir)-2]) {
			t.Errorf("%s: got %v, %v, want it refused or inside", source, q.BuildContexts, err)
		}
	}
}
