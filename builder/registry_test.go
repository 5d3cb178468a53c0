package builder

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// failing is behind a localTransport and notes what gets there.
type failing struct{ asked []string }

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	return nil, errors.New("registry is unreachable")
}

func TestLocalTransport(t *testing.T) {
	s := newStore(t)
	img := put(t, s, "x", Config{}, "debian:bookworm", "other.example/debian:bookworm")
	manifest := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":1,"mediaType":"x"},"layers":[]}`
	md, err := s.putBlob([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.recordManifest(img.ID, md); err != nil {
		t.Fatal(err)
	}
	layer, err := s.putBlob([]byte("0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	absent := "sha256:" + strings.Repeat("f", 64)
	tests := map[string]struct {
		domain, method, path, ranged string
		status                       int // 0: goes on to the registry
		body                         string
	}{
		"tag":                 {"docker.io", "GET", "/v2/library/debian/manifests/bookworm", "", 200, manifest},
		"tag, head":           {"docker.io", "HEAD", "/v2/library/debian/manifests/bookworm", "", 200, ""},
		"digest":              {"docker.io", "GET", "/v2/library/debian/manifests/" + md, "", 200, manifest},
		"blob":                {"docker.io", "GET", "/v2/library/debian/blobs/" + layer, "", 200, "0123456789"},
		"part of a blob":      {"docker.io", "GET", "/v2/library/debian/blobs/" + layer, "bytes=4-", 206, "456789"},
		"end of a blob":       {"docker.io", "GET", "/v2/library/debian/blobs/" + layer, "bytes=10-", 206, ""},
		"other registry":      {"other.example", "GET", "/v2/debian/manifests/bookworm", "", 200, manifest},
		"no such tag":         {"docker.io", "GET", "/v2/library/debian/manifests/trixie", "", 0, ""},
		"name elsewhere":      {"third.example", "GET", "/v2/debian/manifests/bookworm", "", 0, ""},
		"no such blob":        {"docker.io", "GET", "/v2/library/debian/blobs/" + absent, "", 0, ""},
		"blob that is a path": {"docker.io", "GET", "/v2/library/debian/blobs/..", "", 0, ""},
		"upload":              {"docker.io", "POST", "/v2/library/debian/blobs/uploads", "", 0, ""},
		"ping":                {"docker.io", "GET", "/v2/", "", 0, ""},
		"upper case":          {"docker.io", "GET", "/v2/Library/debian/manifests/bookworm", "", 0, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			next := &failing{}
			tr := &localTransport{store: s, domain: tt.domain, next: next}
			r, err := http.NewRequestWithContext(t.Context(), tt.method, "https://"+tt.domain+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.ranged != "" {
				r.Header.Set("Range", tt.ranged)
			}
			resp, err := tr.RoundTrip(r)
			if tt.status == 0 {
				if err == nil || len(next.asked) != 1 {
					t.Fatalf("it was answered: %v %v", resp, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || string(body) != tt.body {
				t.Errorf("got %d %q", resp.StatusCode, body)
			}
			if tt.method == "GET" && resp.ContentLength != int64(len(tt.body)) {
				t.Errorf("got length %d", resp.ContentLength)
			}
			if tt.method == "HEAD" && (resp.ContentLength != int64(len(manifest)) || resp.Header.Get("Docker-Content-Digest") != md) {
				t.Errorf("got length %d, header %v", resp.ContentLength, resp.Header)
			}
		})
	}
}
