package builder_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/builder/buildertest"
)

func openForDebian(t *testing.T) *builder.Builder {
	t.Helper()
	b, err := builder.Open(builder.Options{Dir: t.TempDir(), EngineIdle: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		// The directory can go when the engine has gone.
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(b.Dir(), "buildkit", "engine.sock")); err != nil {
				return
			}
		}
		t.Error("the engine does not leave")
	})
	return b
}

// A distribution, as users have it: packages are installed into it, and what
// they consist of is all there.
func TestDebian(t *testing.T) {
	// sietch itself runs with this one; it decides nothing about an image.
	defer unix.Umask(unix.Umask(0o077))
	b := openForDebian(t)
	base := buildertest.Debian(t, b)
	if len(base.Config.Cmd) != 1 || base.Config.Cmd[0] != "bash" || len(base.Config.Env) != 1 || !strings.HasPrefix(base.Config.Env[0], "PATH=/usr/local/sbin:") {
		t.Errorf("got %+v", base.Config)
	}
	if base.SizeBytes > 200<<20 {
		t.Errorf("the base has %d MiB", base.SizeBytes>>20)
	}
	again, err := b.Bootstrap(t.Context(), buildertest.DebianName, nil)
	if err != nil || again.ID != base.ID {
		t.Errorf("bootstrap of what is there: %s %v", again.ID, err)
	}
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+buildertest.DebianName+"\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	run := func(text string) builder.Image {
		t.Helper()
		write(text)
		out.Reset()
		img, err := b.Build(t.Context(), builder.BuildRequest{ContextDir: dir, Progress: "plain", ProgressOut: &out})
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return img
	}
	run(`RUN set -e; . /etc/os-release; test "$VERSION_CODENAME" = bookworm
RUN test ! -e /etc/hostname || test ! -s /etc/hostname
RUN test "$(stat -c %a /etc/ld.so.cache /etc/passwd /var/lib/dpkg/status | sort -u)" = 644
RUN test -z "$(find /var/cache/apt /var/lib/apt/lists -type f)"
RUN test -s /etc/ssl/certs/ca-certificates.crt && test -u /usr/bin/passwd && test -k /tmp
RUN dpkg --verify 2>&1 | grep -v '/usr/share/\(doc\|man\|locale\)' || true
RUN getent hosts localhost
`)
	if strings.Contains(out.String(), "missing") {
		t.Errorf("files of packages are missing:\n%s", &out)
	}
	start := time.Now()
	run("RUN true\n")
	cold := time.Since(start)
	start = time.Now()
	run("RUN true\n")
	t.Logf("one step %v, cached %v", cold, time.Since(start))
}
