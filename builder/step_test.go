package builder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// Steps see the host's private certificate authorities, and nothing of that is
// in the image or in what a cached step depends on.
func TestStepsTrustTheHostsAuthorities(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, []byte("MARK-OF-THE-BUNDLE"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	context := busyboxContext(t, map[string]string{"Dockerfile": shell + `RUN env > /env; grep -q MARK-OF-THE "$SSL_CERT_FILE" && cp "$CURL_CA_BUNDLE" /seen
ENV GIT_SSL_CAINFO=/own
RUN echo $GIT_SSL_CAINFO > /git
`})
	t.Setenv("SSL_CERT_FILE", bundle)
	b := openBuilder(t, dir)
	img, _ := build(t, b, BuildRequest{ContextDir: context})
	if got := readIn(t, img.RootfsPath, "/seen"); got != "MARK-OF-THE-BUNDLE" {
		t.Errorf("got %q", got)
	}
	if got := readIn(t, img.RootfsPath, "/git"); got != "/own\n" {
		t.Errorf("the Dockerfile's own variable became %q", got)
	}
	for _, name := range caVariables {
		if !strings.Contains(readIn(t, img.RootfsPath, "/env"), name+"="+stepCABundle+"\n") {
			t.Errorf("%s is not set", name)
		}
	}
	for name := range factsIn(t, img.RootfsPath) {
		if strings.Contains(name, "sietch-ca") {
			t.Errorf("%s is in the image", name)
		}
	}
	if env := strings.Join(img.Config.Env, " "); strings.Contains(env, "sietch") || strings.Contains(env, "SSL_CERT") {
		t.Errorf("the image has %s", env)
	}
	// Another bundle, another engine: the steps are cached all the same.
	stopEngine(t, dir)
	if err := os.WriteFile(bundle, []byte("ANOTHER"), 0o644); err != nil {
		t.Fatal(err)
	}
	again, out := build(t, b, BuildRequest{ContextDir: context})
	if again.ID != img.ID || strings.Count(out, "CACHED") != 4 {
		t.Errorf("steps were run again:\n%s", out)
	}
}

func TestHostCABundle(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "b.pem")
	if err := os.WriteFile(bundle, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", bundle)
	if got := HostCABundle(); got != bundle {
		t.Errorf("got %q", got)
	}
	t.Setenv("SSL_CERT_FILE", "/nonexistent/bundle")
	if got := HostCABundle(); got == "/nonexistent/bundle" {
		t.Error("a file that is not there was taken")
	}
	env := CAEnvironment("/b", []string{"PIP_CERT=/mine", "X=y"})
	if len(env) != len(caVariables)-1 || strings.Contains(strings.Join(env, " "), "PIP_CERT") {
		t.Errorf("got %v", env)
	}
}

func TestStepNetworks(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nRUN --network=none ip link > /none\nRUN cat /proc/net/route > /default\nRUN --network=host cat /proc/net/route > /host\n"})
	img, _ := build(t, b, BuildRequest{ContextDir: dir})
	host, err := os.ReadFile("/proc/net/route")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/default", "/host"} {
		if got := readIn(t, img.RootfsPath, name); strings.Count(got, "\n") != strings.Count(string(host), "\n") {
			t.Errorf("%s: got routes\n%swant\n%s", name, got, host)
		}
	}
	if got := readIn(t, img.RootfsPath, "/none"); strings.Count(got, "mtu") != 1 {
		t.Errorf("without network there are:\n%s", got)
	}
}

func TestLayoutContexts(t *testing.T) {
	b := shared(t)
	layout := layoutOf(t, map[string]v1.Image{"v1": sampleImage(t)})
	for _, value := range []string{"oci-layout://" + layout, "oci-layout://" + layout + ":v1"} {
		dir := tree(t, map[string]string{"Dockerfile": "FROM base\nLABEL x=y"})
		img, _ := build(t, b, BuildRequest{ContextDir: dir, BuildContexts: map[string]string{"base": value}})
		if _, ok := factsIn(t, img.RootfsPath)["/dir/new"]; !ok {
			t.Errorf("%s: the layout is not the base", value)
		}
	}
	dir := tree(t, map[string]string{"Dockerfile": "FROM base"})
	_, _, err := tryBuild(t, b, BuildRequest{ContextDir: dir, BuildContexts: map[string]string{"base": "oci-layout://" + layout + ":v2"}})
	if err == nil || !strings.Contains(err.Error(), "there are: v1") {
		t.Errorf("got %v", err)
	}
}

// The cache stays below its limit, also when engines live for seconds only.
func TestCacheLimit(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	const limit = 4 << 20
	b := newBuilder(t, func(o *Options) { o.CacheLimitBytes, o.EngineIdle = limit, 200*time.Millisecond })
	for _, c := range "abcd" {
		build(t, b, BuildRequest{ContextDir: tree(t, map[string]string{
			"f": strings.Repeat(string(c), 3<<20), "Dockerfile": "FROM scratch\nCOPY f /",
		})})
		waitFor(t, 20*time.Second, "the engine to leave", func() bool { return len(engines(b.opts.Dir)) == 0 })
	}
	u, err := b.CacheUsage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.Bytes > limit {
		t.Errorf("the cache has %d bytes, the limit is %d", u.Bytes, limit)
	}
}
