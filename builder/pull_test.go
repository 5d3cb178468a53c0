package builder

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// testRegistry is a registry on the loopback address. With a user it wants
// basic authentication.
type testRegistry struct {
	host     string
	requests atomic.Int64
}

func newRegistry(t *testing.T, user, password string) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		if u, p, ok := req.BasicAuth(); user != "" && (!ok || u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// push puts an image into a registry.
func push(t *testing.T, ref string, img v1.Image, auth authn.Authenticator) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img, remote.WithAuth(auth)); err != nil {
		t.Fatal(err)
	}
}

// dockerLogin makes a docker configuration with these credentials the user's.
func dockerLogin(t *testing.T, host, user, password string) {
	t.Helper()
	dir := t.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	text := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
}

func TestPull(t *testing.T) {
	b := shared(t)
	reg := newRegistry(t, "", "")
	img := sampleImage(t)
	ref := reg.host + "/team/app:v1"
	push(t, ref, img, authn.Anonymous)
	var out bytes.Buffer
	got, err := b.Pull(t.Context(), ref, &out)
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, got)
	if !slices.Contains(got.Names, ref) { // it may have others: its content is that of other tests' images
		t.Errorf("got names %v", got.Names)
	}
	if !strings.Contains(out.String(), "layer 2 of 2") {
		t.Errorf("progress: %q", out.String())
	}
	// By digest: the same image, no new name.
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Pull(t.Context(), reg.host+"/team/app@"+digest.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != got.ID || !cmp.Equal(again.Names, got.Names) {
		t.Errorf("got %s %v", again.ID, again.Names)
	}
	// The manifest stays what it is in the registry.
	manifest, err := b.store.recordedManifest(got.ID)
	if err != nil || manifest != digest.String() {
		t.Errorf("got manifest %s %v, want %s", manifest, err, digest)
	}
	// What was pulled is a base without the registry.
	before := reg.requests.Load()
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + ref + "\nLABEL local=yes"})
	child, _ := build(t, b, BuildRequest{ContextDir: dir})
	if child.RootfsDigest != got.RootfsDigest {
		t.Errorf("got %s, want %s", child.RootfsDigest, got.RootfsDigest)
	}
	if n := reg.requests.Load() - before; n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

func TestPullErrors(t *testing.T) {
	b := shared(t)
	reg := newRegistry(t, "user", "secret")
	push(t, reg.host+"/private:v1", sampleImage(t), &authn.Basic{Username: "user", Password: "secret"})
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	tests := map[string]struct {
		ref, says, hint string
		is              error
	}{
		"nobody listens":  {"localhost:1/xx:y", "connection refused", "image import", ErrUnreachable},
		"not logged in":   {reg.host + "/private:v1", "UNAUTHORIZED", "docker login", nil},
		"no name":         {"Not A Name", "", "", ErrInvalidName},
		"one letter":      {"localhost:1/x", "between 2 and 255 characters", "", ErrInvalidName},
		"reserved domain": {localDomain + "/x", "reserved", "", ErrInvalidName},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := b.Pull(t.Context(), tt.ref, nil)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			var h interface{ Hint() string }
			if tt.hint != "" && (!errors.As(err, &h) || !strings.Contains(h.Hint(), tt.hint)) {
				t.Errorf("no hint with %q in %v", tt.hint, err)
			}
		})
	}
	dockerLogin(t, reg.host, "user", "secret")
	if _, err := b.Pull(t.Context(), reg.host+"/private:v1", nil); err != nil {
		t.Errorf("logged in: %v", err)
	}
	if _, err := b.Pull(t.Context(), reg.host+"/private:v2", nil); !errors.Is(err, ErrImageNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestFromRegistry(t *testing.T) {
	b := shared(t)
	reg := newRegistry(t, "user", "secret")
	auth := &authn.Basic{Username: "user", Password: "secret"}
	img := sampleImage(t)
	push(t, reg.host+"/base:v1", img, auth)
	dockerLogin(t, reg.host, "user", "secret")
	dir := tree(t, map[string]string{"f": "f", "Dockerfile": "FROM " + reg.host + "/base:v1\nCOPY f /f"})
	got, _ := build(t, b, BuildRequest{ContextDir: dir})
	if _, ok := factsIn(t, got.RootfsPath)["/dir/new"]; !ok {
		t.Error("the base is not in the image")
	}
	if got.Config.User != "1:2" {
		t.Errorf("got %+v", got.Config)
	}
	t.Run("no such image", func(t *testing.T) {
		dir := tree(t, map[string]string{"Dockerfile": "FROM " + reg.host + "/base:v2"})
		_, _, err := tryBuild(t, b, BuildRequest{ContextDir: dir})
		if !errors.Is(err, ErrImageNotFound) || !strings.Contains(err.Error(), reg.host+"/base:v2") || !strings.Contains(err.Error(), "has no such image") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Debian without a registry", func(t *testing.T) {
		err := explainResolve("docker-image://docker.io/library/debian:trixie", errors.New("dial tcp: no route to host"))
		var h interface{ Hint() string }
		if !errors.Is(err, ErrUnreachable) || !errors.As(err, &h) || !strings.Contains(h.Hint(), "sietch image bootstrap debian:trixie") {
			t.Errorf("got %v", err)
		}
		for _, s := range []string{"debian:trixie", "not in the local store", "docker.io", "no route to host"} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("error does not say %q: %v", s, err)
			}
		}
	})
}

// Two registries may have images of the same name; a local one is of one only.
func TestRegistriesDoNotMix(t *testing.T) {
	b := shared(t)
	one, two := newRegistry(t, "", ""), newRegistry(t, "", "")
	base := sampleImage(t)
	var images [2]v1.Image
	for k := range images {
		l := layerOf(t, tarOfFile(t, "which", fmt.Sprint(k+1)))
		img, err := mutate.AppendLayers(base, l)
		if err != nil {
			t.Fatal(err)
		}
		images[k] = img
	}
	push(t, one.host+"/same:v1", images[0], authn.Anonymous)
	push(t, two.host+"/same:v1", images[1], authn.Anonymous)
	if _, err := b.Pull(t.Context(), one.host+"/same:v1", nil); err != nil {
		t.Fatal(err)
	}
	for k, host := range []string{one.host, two.host} {
		dir := tree(t, map[string]string{"Dockerfile": "FROM " + host + "/same:v1\nLABEL x=y"})
		img, _ := build(t, b, BuildRequest{ContextDir: dir})
		if got := readIn(t, img.RootfsPath, "/which"); got != fmt.Sprint(k+1) {
			t.Errorf("%s: got %q", host, got)
		}
	}
}

// A name that is given to another image is another base at once.
func TestFromFollowsTheName(t *testing.T) {
	b := shared(t)
	for _, text := range []string{"first", "second"} {
		dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nRUN echo " + text + " > /text"})
		build(t, b, BuildRequest{ContextDir: dir, Names: []string{"moving"}})
		next := tree(t, map[string]string{"Dockerfile": "FROM moving\nRUN cp /text /copy"})
		img, _ := build(t, b, BuildRequest{ContextDir: next})
		if got := readIn(t, img.RootfsPath, "/copy"); got != text+"\n" {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}
