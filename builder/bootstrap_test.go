package builder

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseBase(t *testing.T) {
	for name, want := range map[string]baseImage{
		"debian:bookworm":                  {"debian:bookworm", "debian", "bookworm"},
		"debian:bookworm-slim":             {"debian:bookworm-slim", "debian", "bookworm"},
		"debian:12":                        {"debian:12", "debian", "bookworm"},
		"debian":                           {"debian:latest", "debian", "stable"},
		"docker.io/library/debian:13":      {"debian:13", "debian", "trixie"},
		"ubuntu:noble":                     {"ubuntu:noble", "ubuntu", "noble"},
		"ubuntu:24.04":                     {"ubuntu:24.04", "ubuntu", "noble"},
		"docker.io/library/debian:sid":     {"debian:sid", "debian", "sid"},
		"docker.io/library/debian:12-slim": {"debian:12-slim", "debian", "bookworm"},
	} {
		if got, err := parseBase(name); err != nil || got != want {
			t.Errorf("%s: got %+v %v, want %+v", name, got, err, want)
		}
	}
	for _, bad := range []string{"alpine:3", "debian:99", "debian:12.5", "ubuntu", "ubuntu:latest", "example.com/debian:12", "debian:../x", "debian:-x", "debian:A"} {
		if got, err := parseBase(bad); err == nil {
			t.Errorf("%s: got %+v", bad, got)
		}
	}
}

func TestParseAptSources(t *testing.T) {
	oneLine := parseOneLine(`
# deb http://commented/ bookworm main
deb http://m.example/debian bookworm main contrib # and so on
deb [ arch=amd64 signed-by=/usr/share/keyrings/k.gpg ] http://m.example/debian	bookworm-updates main
deb-src http://m.example/debian bookworm main
deb http://broken
debian http://x/ y main
deb [unclosed http://x/ y main
deb [signed-by=AABBCC] http://m.example/sec bookworm-security main
`)
	want := []aptSource{
		{uri: "http://m.example/debian", suite: "bookworm", components: []string{"main", "contrib"}},
		{uri: "http://m.example/debian", suite: "bookworm-updates", components: []string{"main"}, signedBy: "/usr/share/keyrings/k.gpg"},
		{uri: "http://m.example/sec", suite: "bookworm-security", components: []string{"main"}},
	}
	if diff := cmp.Diff(want, oneLine, cmp.AllowUnexported(aptSource{})); diff != "" {
		t.Errorf("one-line (-want +got):\n%s", diff)
	}
	deb822 := parseDeb822(`# comment
Types: deb deb-src
URIs: http://m.example/debian
# in between
Suites: bookworm
  bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg

Enabled: no
Types: deb
URIs: http://off.example/
Suites: bookworm
Components: main

Types: deb-src
URIs: http://src.example/
Suites: bookworm
Components: main


types: deb
uris: http://m.example/sec
suites: bookworm-security
components: main
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----`)
	want = []aptSource{
		{uri: "http://m.example/debian", suite: "bookworm", components: []string{"main", "contrib"}, signedBy: "/usr/share/keyrings/k.gpg"},
		{uri: "http://m.example/debian", suite: "bookworm-updates", components: []string{"main", "contrib"}, signedBy: "/usr/share/keyrings/k.gpg"},
		{uri: "http://m.example/sec", suite: "bookworm-security", components: []string{"main"}},
	}
	if diff := cmp.Diff(want, deb822, cmp.AllowUnexported(aptSource{})); diff != "" {
		t.Errorf("deb822 (-want +got):\n%s", diff)
	}
}

func TestSourcesForAnotherRelease(t *testing.T) {
	host := []aptSource{
		{uri: "http://m/debian", suite: "bookworm", components: []string{"main"}, signedBy: "/k"},
		{uri: "http://m/debian", suite: "bookworm-updates", components: []string{"main"}},
		{uri: "http://m/debian", suite: "bookworm-backports", components: []string{"main"}},
		{uri: "http://m/security", suite: "bookworm-security", components: []string{"main"}},
		{uri: "http://m/debian", suite: "bookworm", components: []string{"main"}, signedBy: "/k"},
		{uri: "http://other/node", suite: "nodistro", components: []string{"main"}},
	}
	lines := func(sources []aptSource) string {
		var out []string
		for _, s := range sources {
			out = append(out, s.line())
		}
		return strings.Join(out, "\n")
	}
	tests := map[string]struct {
		base     baseImage
		id, code string
		want     string
	}{
		"the same": {baseImage{"", "debian", "bookworm"}, "debian", "bookworm",
			"deb [signed-by=/k] http://m/debian bookworm main\ndeb http://m/debian bookworm-updates main\ndeb http://m/security bookworm-security main"},
		"another release": {baseImage{"", "debian", "trixie"}, "debian", "bookworm",
			"deb [signed-by=/k] http://m/debian trixie main\ndeb http://m/debian trixie-updates main\ndeb http://m/security trixie-security main"},
		"rolling":              {baseImage{"", "debian", "sid"}, "debian", "bookworm", "deb [signed-by=/k] http://m/debian sid main"},
		"another distribution": {baseImage{"", "ubuntu", "noble"}, "debian", "bookworm", ""},
		"listed by a stranger": {baseImage{"", "debian", "bookworm"}, "mint", "xia",
			"deb [signed-by=/k] http://m/debian bookworm main\ndeb http://m/debian bookworm-updates main\ndeb http://m/security bookworm-security main"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := lines(sourcesFor(tt.base, host, tt.id, tt.code)); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestBootstrapErrors(t *testing.T) {
	b := newBuilder(t)
	for name, is := range map[string]error{"alpine:3": ErrInvalidRequest, "UPPER": ErrInvalidName, "debian:7.11": ErrInvalidRequest} {
		if _, err := b.Bootstrap(t.Context(), name, nil); !errors.Is(err, is) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	err := bootstrapError([]aptSource{{uri: "http://mirror.example/debian"}}, errors.New("exit status 25"),
		"I: running apt-get update...\nErr:1 http://mirror.example/debian bookworm InRelease\nE: The repository has no Release file.\nE: apt-get update failed")
	for _, s := range []string{"no Release file", "exit status 25"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error does not say %q: %v", s, err)
		}
	}
}
