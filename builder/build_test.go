package builder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBuildAgainGivesTheSameImage(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nRUN echo hello > /hello\nCMD [\"cat\", \"/hello\"]"})
	img, out := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"hello", "hello:v1"}})
	fsck(t, img.RootfsPath)
	if got := readIn(t, img.RootfsPath, "/hello"); got != "hello\n" {
		t.Errorf("got %q", got)
	}
	if !strings.Contains(out, "RUN echo hello") {
		t.Errorf("progress does not show the step:\n%s", out)
	}
	if diff := cmp.Diff([]string{"hello:latest", "hello:v1"}, img.Names); diff != "" {
		t.Error(diff)
	}
	start := time.Now()
	again, out := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"hello"}})
	if again.ID != img.ID || !again.Created.Equal(img.Created) {
		t.Errorf("got %s, then %s", img.ID, again.ID)
	}
	if !strings.Contains(out, "image is unchanged") {
		t.Errorf("the image was made again in %v:\n%s", time.Since(start), out)
	}
	// Another configuration is another image with the same file.
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+busybox+"\nRUN echo hello > /hello\nCMD [\"true\"]"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, _ := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"hello"}})
	if other.ID == img.ID || other.RootfsDigest != img.RootfsDigest {
		t.Errorf("got %s %s, then %s %s", img.ID, img.RootfsDigest, other.ID, other.RootfsDigest)
	}
	if !sameFile(t, img.RootfsPath, other.RootfsPath) {
		t.Error("equal root file systems are kept twice")
	}
	old, err := b.Image(t.Context(), img.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hello:v1"}, old.Names); diff != "" {
		t.Errorf("names of the older image: %s", diff)
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

func TestBuildWithoutCacheIsDeterministic(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{
		"a": "a", "d/b": "b",
		"Dockerfile": "FROM " + busybox + "\nCOPY . /ctx\nRUN echo x > /x && touch -d @1000000000 /x && find /ctx -exec touch -d @1000000000 {} +",
	})
	first, _ := build(t, b, BuildRequest{ContextDir: dir, NoCache: true})
	second, out := build(t, b, BuildRequest{ContextDir: dir, NoCache: true})
	if first.ID != second.ID {
		t.Errorf("got %s, then %s", first.ID, second.ID)
	}
	if strings.Contains(out, "image is unchanged") {
		t.Error("the second build did not run")
	}
}

// Hazard 15: everything a build step can make has to arrive.
func TestBuildKeepsMetadata(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{
		"file": "copied",
		"Dockerfile": "FROM " + busybox + `
COPY --chown=11:22 --chmod=4711 file /copied
ADD file /added/
RUN <<SH
set -e
mkdir -p /t/sticky /t/d/e
chmod 1777 /t/sticky
echo s > /t/suid; chown 5:6 /t/suid; chmod 6755 /t/suid
echo h > /t/hard; ln /t/hard /t/d/hard2; ln /t/hard /t/d/e/hard3
ln -s /nowhere /t/link
mknod /t/null c 1 3; mknod /t/blk b 7 9; mkfifo /t/pipe
truncate -s 3G /t/sparse; echo end >> /t/sparse
n=$(printf %255s | tr ' ' n); echo long > /t/$n
chown -h 9:9 /t/link
touch -d '2001-02-03 04:05:06' /t/d/e
SH
RUN --network=host true
`,
	})
	img, _ := build(t, b, BuildRequest{ContextDir: dir})
	fsck(t, img.RootfsPath)
	facts := factsIn(t, img.RootfsPath)
	long := "/t/" + strings.Repeat("n", 255)
	want := map[string]fileFact{
		"/copied":     {Mode: "104711", Owner: "11:22", Links: 1, Size: 6},
		"/added/file": {Mode: "100644", Owner: "0:0", Links: 1, Size: 6},
		"/t/sticky":   {Mode: "41777", Owner: "0:0"},
		"/t/suid":     {Mode: "106755", Owner: "5:6", Links: 1, Size: 2},
		"/t/hard":     {Mode: "100644", Owner: "0:0", Links: 3, Size: 2, HardWith: "/t/d/e/hard3"},
		"/t/d/hard2":  {Mode: "100644", Owner: "0:0", Links: 3, Size: 2, HardWith: "/t/d/e/hard3"},
		"/t/link":     {Mode: "120777", Owner: "9:9", Links: 1, Link: "/nowhere"},
		"/t/null":     {Mode: "20644", Owner: "0:0", Links: 1, Rdev: "1:3"},
		"/t/blk":      {Mode: "60644", Owner: "0:0", Links: 1, Rdev: "7:9"},
		"/t/pipe":     {Mode: "10644", Owner: "0:0", Links: 1},
		"/t/sparse":   {Mode: "100644", Owner: "0:0", Links: 1, Size: 3<<30 + 4},
		long:          {Mode: "100644", Owner: "0:0", Links: 1, Size: 5},
	}
	for name, w := range want {
		got, ok := facts[name]
		if !ok {
			t.Errorf("%s is not in the image", name)
			continue
		}
		got.Mtime = ""
		if diff := cmp.Diff(w, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := facts["/t/d/e"].Mtime; got != "2001-02-03T04:05:06Z" {
		t.Errorf("/t/d/e was modified %s", got)
	}
	if img.SizeBytes > 50<<20 {
		t.Errorf("a hole of 3 GiB counts: %d bytes", img.SizeBytes)
	}
	for name, f := range facts {
		if strings.Contains(f.Xattrs, "overlay") {
			t.Errorf("%s shows attributes of overlayfs: %s", name, f.Xattrs)
		}
	}
}

// Hazard 16: what a later layer deletes or replaces stays so.
func TestBuildWhiteouts(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{
		"new/only": "n",
		"Dockerfile": "FROM " + busybox + `
RUN mkdir -p /w/dir/sub /w/opaque /w/todir /w/back && echo 1 > /w/gone && echo 1 > /w/dir/sub/f && echo 1 > /w/opaque/old && echo 1 > /w/tofile && echo 1 > /w/back/f && ln -s dir /w/tolink
RUN rm /w/gone && rm -r /w/dir /w/opaque && mkdir /w/opaque && echo 2 > /w/opaque/new && rm /w/tofile && mkdir /w/tofile && rmdir /w/todir && echo 2 > /w/todir && rm -r /w/back
RUN mkdir /w/back && echo 3 > /w/back/g && rm -r /w/tofile && echo 3 > /w/tofile && rm /w/todir && mkdir /w/todir && rm /w/tolink && mkdir /w/tolink
COPY --link new /w/opaque
`,
	})
	img, _ := build(t, b, BuildRequest{ContextDir: dir})
	fsck(t, img.RootfsPath)
	var got []string
	for name, f := range factsIn(t, img.RootfsPath) {
		if strings.HasPrefix(name, "/w/") {
			got = append(got, name+" "+f.Mode)
		}
		if strings.Contains(name, ".wh.") || strings.Contains(f.Xattrs, "overlay") || f.Rdev == "0:0" {
			t.Errorf("%s marks a deletion: %+v", name, f)
		}
	}
	want := []string{
		"/w/back 40755", "/w/back/g 100644", "/w/opaque 40755", "/w/opaque/new 100644", "/w/opaque/only 100644",
		"/w/todir 40755", "/w/tofile 100644", "/w/tolink 40755",
	}
	if diff := cmp.Diff(want, sorted(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The same through a flattened layer, as FROM of a built image uses it.
	if err := b.Tag(t.Context(), img.ID, "whiteouts"); err != nil {
		t.Fatal(err)
	}
	next := tree(t, map[string]string{"Dockerfile": "FROM whiteouts\nRUN test ! -e /w/gone && test -f /w/tofile && rm /w/back/g\n"})
	img, _ = build(t, b, BuildRequest{ContextDir: next})
	if _, ok := factsIn(t, img.RootfsPath)["/w/back/g"]; ok {
		t.Error("/w/back/g came back")
	}
}

// Hazard 19: what a Dockerfile says about running arrives, in both forms.
func TestBuildConfig(t *testing.T) {
	b := shared(t)
	from := "FROM " + busybox + "\n"
	const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	tests := map[string]struct {
		dockerfile string
		want       Config
	}{
		"nothing":        {from, Config{Env: []string{path}, WorkingDir: "/"}},
		"shell form":     {from + "CMD echo $A\nENTRYPOINT run me", Config{Env: []string{path}, Entrypoint: []string{"/bin/sh", "-c", "run me"}, Cmd: []string{"/bin/sh", "-c", "echo $A"}, WorkingDir: "/"}},
		"exec form":      {from + `ENTRYPOINT ["a", "b c"]` + "\nCMD [\"d\"]", Config{Env: []string{path}, Entrypoint: []string{"a", "b c"}, Cmd: []string{"d"}, WorkingDir: "/"}},
		"own shell":      {from + `SHELL ["/bin/ash", "-ec"]` + "\nCMD x", Config{Env: []string{path}, Cmd: []string{"/bin/ash", "-ec", "x"}, Shell: []string{"/bin/ash", "-ec"}, WorkingDir: "/"}},
		"env":            {from + "ENV A=b C=\"d e\"\nENV A=f", Config{Env: []string{path, "A=f", "C=d e"}, WorkingDir: "/"}},
		"user, numbers":  {from + "USER 12:34", Config{Env: []string{path}, User: "12:34", WorkingDir: "/"}},
		"user, name":     {from + "USER nobody", Config{Env: []string{path}, User: "nobody", WorkingDir: "/"}},
		"workdir":        {from + "WORKDIR /a\nWORKDIR b", Config{Env: []string{path}, WorkingDir: "/a/b"}},
		"stop and ports": {from + "STOPSIGNAL SIGQUIT\nEXPOSE 80 53/udp", Config{Env: []string{path}, StopSignal: "SIGQUIT", ExposedPorts: []string{"53/udp", "80/tcp"}, WorkingDir: "/"}},
		"labels":         {from + "LABEL a=b \"c d\"=e\nVOLUME /v /w", Config{Env: []string{path}, Labels: map[string]string{"a": "b", "c d": "e"}, Volumes: []string{"/v", "/w"}, WorkingDir: "/"}},
		"health": {from + "HEALTHCHECK --interval=5s --retries=2 --start-interval=1s CMD ok", Config{Env: []string{path}, WorkingDir: "/", Healthcheck: &Healthcheck{
			Test: []string{"CMD-SHELL", "ok"}, Interval: 5 * time.Second, Retries: 2, StartInterval: time.Second,
		}}},
		"onbuild": {from + "ONBUILD RUN touch /onbuild", Config{Env: []string{path}, OnBuild: []string{"RUN touch /onbuild"}, WorkingDir: "/"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, map[string]string{"Dockerfile": tt.dockerfile})
			img, _ := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"config"}})
			if diff := cmp.Diff(tt.want, img.Config); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// And a build FROM it inherits what it does not change.
			next := tree(t, map[string]string{"Dockerfile": "FROM config\nENV MORE=1"})
			child, _ := build(t, b, BuildRequest{ContextDir: next})
			want := tt.want
			want.Env, want.OnBuild = append(want.Env[:len(want.Env):len(want.Env)], "MORE=1"), nil
			if diff := cmp.Diff(want, child.Config); diff != "" {
				t.Errorf("child (-want +got):\n%s", diff)
			}
			if _, ok := factsIn(t, child.RootfsPath)["/onbuild"]; ok != (tt.want.OnBuild != nil) {
				t.Errorf("trigger was run: %v", ok)
			}
		})
	}
}

func TestBuildFeatures(t *testing.T) {
	b := shared(t)
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte("t0p-s3cret-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SIETCH_TEST_SECRET", "t0p-s3cret-env")
	from := "FROM " + busybox + "\n"
	tests := map[string]struct {
		files   map[string]string
		request BuildRequest
		want    map[string]string // files of the image; "-" is that there is none
	}{
		"several stages": {
			files:   map[string]string{"Dockerfile": from + "RUN echo 1 > /one\nFROM " + busybox + " AS two\nRUN echo 2 > /two\nFROM two\nCOPY --from=0 /one /copied"},
			request: BuildRequest{},
			want:    map[string]string{"/copied": "1\n", "/two": "2\n", "/one": "-"},
		},
		"target": {
			files:   map[string]string{"Dockerfile": from + "RUN echo 1 > /one\nFROM " + busybox + " AS two\nRUN echo 2 > /two\nFROM two\nRUN false"},
			request: BuildRequest{Target: "two"},
			want:    map[string]string{"/two": "2\n"},
		},
		"arguments": {
			files:   map[string]string{"Dockerfile": "ARG BASE=nothing\nFROM $BASE\nARG A=default\nARG B=default\nRUN echo $A $B > /args"},
			request: BuildRequest{BuildArgs: map[string]string{"BASE": busybox, "A": "given"}},
			want:    map[string]string{"/args": "given default\n"},
		},
		"heredoc": {
			files: map[string]string{"Dockerfile": from + "COPY <<one <<two /h/\n1 $HOME\none\n2\ntwo\nRUN <<X\n#!/bin/sh\necho script > /script\nX\n"},
			want:  map[string]string{"/h/one": "1 \n", "/h/two": "2\n", "/script": "script\n"},
		},
		"syntax line": {
			files: map[string]string{"Dockerfile": "# syntax=nowhere.invalid/frontend:1\n" + from + "RUN echo ok > /ok"},
			want:  map[string]string{"/ok": "ok\n"},
		},
		"dockerignore": {
			files: map[string]string{".dockerignore": "*.log\n!keep.log\nsecret/\n", "a.log": "a", "keep.log": "k", "secret/s": "s", "b": "b", "Dockerfile": from + "COPY . /c"},
			want:  map[string]string{"/c/a.log": "-", "/c/keep.log": "k", "/c/secret": "-", "/c/b": "b"},
		},
		"ignore file of the Dockerfile": {
			files:   map[string]string{".dockerignore": "b\n", "x.Dockerfile.dockerignore": "a\n", "a": "a", "b": "b", "x.Dockerfile": from + "COPY . /c"},
			request: BuildRequest{Dockerfile: "x.Dockerfile"},
			want:    map[string]string{"/c/a": "-", "/c/b": "b"},
		},
		"bind and cache mounts": {
			files: map[string]string{"in": "bound", "Dockerfile": from +
				"RUN --mount=type=cache,target=/cache echo cached > /cache/f\n" +
				"RUN --mount=type=cache,target=/cache --mount=type=bind,source=in,target=/mnt/in cat /cache/f /mnt/in > /both\n" +
				"RUN --mount=type=tmpfs,target=/scratch echo x > /scratch/y"},
			want: map[string]string{"/both": "cached\nbound", "/cache/f": "-", "/scratch/y": "-", "/mnt/in": "-"},
		},
		"secrets": {
			files: map[string]string{"Dockerfile": from +
				"RUN --mount=type=secret,id=file grep -qx '...-s.cret-file' /run/secrets/file && touch /file-ok\n" +
				"RUN --mount=type=secret,id=env,env=S echo $S | grep -qx '...-s.cret-env' && touch /env-ok"},
			request: BuildRequest{Secrets: []Secret{{ID: "file", Source: secretFile}, {ID: "env", Env: "SIETCH_TEST_SECRET"}}},
			want:    map[string]string{"/file-ok": "", "/env-ok": "", "/run/secrets/file": "-", "/run/secrets": "-"},
		},
		"named contexts": {
			files: map[string]string{"Dockerfile": "FROM base\nCOPY --from=more /extra /extra"},
			request: BuildRequest{BuildContexts: map[string]string{
				"base": "docker-image://" + busybox, "more": tree(t, map[string]string{"extra": "e"}),
			}},
			want: map[string]string{"/extra": "e"},
		},
		"nothing in it": {
			files: map[string]string{"Dockerfile": "FROM scratch\nLABEL empty=yes"},
			want:  map[string]string{"/bin": "-"},
		},
		"one file on scratch": {
			files: map[string]string{"f": "f", "Dockerfile": "FROM scratch\nCOPY f /"},
			want:  map[string]string{"/f": "f"},
		},
		"unnamed user and group": {
			files: map[string]string{"Dockerfile": from + "USER 1234\nRUN id -u > /tmp/id"},
			want:  map[string]string{"/tmp/id": "1234\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.request.ContextDir = tree(t, tt.files)
			img, out := build(t, b, tt.request)
			fsck(t, img.RootfsPath)
			facts := factsIn(t, img.RootfsPath)
			for file, want := range tt.want {
				if _, ok := facts[file]; !ok {
					if want != "-" {
						t.Errorf("%s is not in the image", file)
					}
					continue
				}
				if want == "-" {
					t.Errorf("%s is in the image", file)
				} else if got := readIn(t, img.RootfsPath, file); got != want {
					t.Errorf("%s: got %q, want %q", file, got, want)
				}
			}
			raw, err := os.ReadFile(img.RootfsPath)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), "t0p-s3cret") || strings.Contains(out, "t0p-s3cret") {
				t.Error("a secret is in the image or the output")
			}
		})
	}
}

func TestBuildContextFromStream(t *testing.T) {
	b := shared(t)
	t.Run("Dockerfile alone", func(t *testing.T) {
		img, _ := build(t, b, BuildRequest{ContextDir: "-", Context: strings.NewReader("FROM " + busybox + "\nRUN echo s > /s")})
		if got := readIn(t, img.RootfsPath, "/s"); got != "s\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("archive", func(t *testing.T) {
		dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nCOPY f /", "f": "from a tar"})
		img, _ := build(t, b, BuildRequest{ContextDir: "-", Context: tarOf(t, dir)})
		if got := readIn(t, img.RootfsPath, "/f"); got != "from a tar" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("Dockerfile beside a directory", func(t *testing.T) {
		dir := tree(t, map[string]string{"f": "in the directory"})
		img, _ := build(t, b, BuildRequest{ContextDir: dir, Dockerfile: "-", Context: strings.NewReader("FROM " + busybox + "\nCOPY f /")})
		if got := readIn(t, img.RootfsPath, "/f"); got != "in the directory" {
			t.Errorf("got %q", got)
		}
	})
}

func TestBuildErrors(t *testing.T) {
	b := shared(t)
	before, err := b.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from := "FROM " + busybox + "\n"
	tests := map[string]struct {
		files   map[string]string
		request BuildRequest
		is      error
		says    []string
		hint    string
	}{
		"unknown instruction": {
			files: map[string]string{"Dockerfile": from + "RUN true\nBREAK it"},
			is:    ErrDockerfile, says: []string{"Dockerfile:3", ">>> BREAK it", "unknown instruction: BREAK"},
		},
		"step fails": {
			files: map[string]string{"Dockerfile": from + "\nRUN echo last words && exit 3"},
			is:    ErrDockerfile, says: []string{"exit code: 3", ">>> RUN echo last words"},
		},
		"nothing to copy": {
			files: map[string]string{"Dockerfile": from + "COPY nothing /"},
			is:    ErrDockerfile, says: []string{"/nothing", "not found", ">>> COPY nothing /"},
		},
		"empty Dockerfile": {
			files: map[string]string{"Dockerfile": ""},
			says:  []string{"cannot be empty"},
		},
		"no Dockerfile": {
			files: map[string]string{"x": ""},
			is:    ErrDockerfile, says: []string{"there is no", "Dockerfile"}, hint: "-f",
		},
		"no context": {
			request: BuildRequest{ContextDir: "/nonexistent/context"},
			is:      ErrInvalidRequest, says: []string{"/nonexistent/context", "no such file"},
		},
		"no such target": {
			files:   map[string]string{"Dockerfile": from},
			request: BuildRequest{Target: "nowhere"},
			says:    []string{"nowhere"},
		},
		"image of a registry that does not answer": {
			files: map[string]string{"Dockerfile": "FROM localhost:1/some/image:tag"},
			is:    ErrUnreachable, says: []string{"localhost:1/some/image:tag", "not in the local store", "connection refused", ">>> FROM"},
			hint: "sietch image import",
		},
		"every mistake of a request at once": {
			files: map[string]string{"Dockerfile": from},
			request: BuildRequest{
				Names: []string{"UPPER", "ok", "../up"}, Progress: "loud",
				Secrets: []Secret{{ID: "s", Source: "/nonexistent/secret"}}, BuildContexts: map[string]string{"c": "/nonexistent/dir"},
			},
			is: ErrInvalidRequest, says: []string{"UPPER", "../up", "loud", "/nonexistent/secret", "/nonexistent/dir"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.request.ContextDir == "" {
				tt.request.ContextDir = tree(t, tt.files)
			}
			_, out, err := tryBuild(t, b, tt.request)
			if err == nil {
				t.Fatal("no error")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is no %v", err, tt.is)
			}
			for _, s := range tt.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error does not say %q:\n%v", s, err)
				}
			}
			var h interface{ Hint() string }
			if tt.hint != "" && (!errors.As(err, &h) || !strings.Contains(h.Hint(), tt.hint)) {
				t.Errorf("no hint with %q in %v", tt.hint, err)
			}
			if name == "step fails" && !strings.Contains(out, "last words") {
				t.Errorf("the tail of the output is lost:\n%s", out)
			}
		})
	}
	after, err := b.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != len(before) {
		t.Errorf("failed builds left images: %d, then %d", len(before), len(after))
	}
	checkNoLeftovers(t, b)
}

// checkNoLeftovers makes sure that no operation left its temporary directory.
func checkNoLeftovers(t *testing.T, b *Builder) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.store.temp, tempPrefix+"*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) > 0 {
		t.Errorf("left: %v", found)
	}
}

func TestBuildWarnings(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "from " + busybox + " as x\nMAINTAINER me"})
	_, out := build(t, b, BuildRequest{ContextDir: dir})
	for _, s := range []string{"warning(s)", "MaintainerDeprecated", "Dockerfile:2"} {
		if !strings.Contains(out, s) {
			t.Errorf("output does not have %q:\n%s", s, out)
		}
	}
	_, out = build(t, b, BuildRequest{ContextDir: dir, Progress: "quiet"})
	if out != "" {
		t.Errorf("quiet says %q", out)
	}
	_, out = build(t, b, BuildRequest{ContextDir: dir, Progress: "rawjson"})
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("no JSON: %q", line)
		}
	}
}

func TestBuildsAtOnceShareSteps(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nRUN sleep 1; cat /proc/sys/kernel/random/uuid > /uuid"})
	var wg sync.WaitGroup
	images := make([]Image, 3)
	errs := make([]error, 3)
	for k := range images {
		wg.Add(1)
		go func() {
			defer wg.Done()
			images[k], errs[k] = b.Build(t.Context(), BuildRequest{ContextDir: dir, Progress: "quiet"})
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if images[0].ID != images[1].ID || images[1].ID != images[2].ID {
		t.Errorf("the step ran more than once: %s %s %s", images[0].ID, images[1].ID, images[2].ID)
	}
}

func TestBuildIsCancelled(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + "\nRUN echo started; sleep 1000"})
	ctx, cancel := context.WithCancel(t.Context())
	out := &signalWriter{want: "started", seen: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := b.Build(ctx, BuildRequest{ContextDir: dir, Progress: "plain", ProgressOut: out})
		done <- err
	}()
	select {
	case <-out.seen:
	case err := <-done:
		t.Fatalf("ended early: %v", err)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
	}
	waitFor(t, 10*time.Second, "the step to end", func() bool { return len(stepsOf(t, b)) == 0 })
	checkNoLeftovers(t, b)
}

// stepsOf lists the running build steps.
func stepsOf(t *testing.T, b *Builder) []string {
	t.Helper()
	steps, err := filepath.Glob(filepath.Join(engineDir(b.opts.Dir), engineState, "runc-*", "executor", "*", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

// signalWriter closes seen when a text has passed.
type signalWriter struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	seen chan struct{}
	once sync.Once
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	// The step itself is echoed too, with its command.
	if strings.Contains(w.text.String(), " "+w.want+"\n") {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func (w *signalWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
