package builder

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// layerOf is an image layer of a tar.
func layerOf(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sampleImage has two layers, the second of which deletes from the first, and a
// configuration.
func sampleImage(t *testing.T) v1.Image {
	t.Helper()
	base := tarOfEntries(t, []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir}, {Name: "etc/a"}, {Name: "etc/gone"},
		{Name: "dir/", Typeflag: tar.TypeDir}, {Name: "dir/old"}, {Name: "suid", Mode: 0o4755, Uid: 70000, Gid: 8},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "etc/a"},
		{Name: "cap", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}},
	}, map[string]string{"etc/a": "a", "etc/gone": "gone", "dir/old": "old", "suid": "s", "cap": "c"})
	top := tarOfEntries(t, []tar.Header{
		// The time of a directory is that of the unpacking if it is not in here.
		{Name: "etc/", Typeflag: tar.TypeDir}, {Name: "etc/.wh.gone"},
		{Name: "dir/", Typeflag: tar.TypeDir}, {Name: "dir/.wh..wh..opq"}, {Name: "dir/new"},
	}, map[string]string{"dir/new": "new"})
	img, err := mutate.AppendLayers(empty.Image, layerOf(t, base.Bytes()), layerOf(t, top.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.Architecture, cfg.OS = "amd64", "linux"
	cfg.Config = v1.Config{Cmd: []string{"run"}, Env: []string{"A=b"}, User: "1:2", WorkingDir: "/dir"}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}

// checkSample makes sure that an image is what sampleImage says.
func checkSample(t *testing.T, img Image) {
	t.Helper()
	fsck(t, img.RootfsPath)
	facts := factsIn(t, img.RootfsPath)
	for _, name := range []string{"/etc/gone", "/dir/old", "/etc/.wh.gone"} {
		if _, ok := facts[name]; ok {
			t.Errorf("%s is in the image", name)
		}
	}
	if got := readIn(t, img.RootfsPath, "/dir/new"); got != "new" {
		t.Errorf("got %q", got)
	}
	if f := facts["/suid"]; f.Mode != "104755" || f.Owner != "70000:8" {
		t.Errorf("/suid: %+v", f)
	}
	if f := facts["/hard"]; f.HardWith != "/etc/a" || f.Links != 2 {
		t.Errorf("/hard: %+v", f)
	}
	if f := facts["/cap"]; !strings.HasPrefix(f.Xattrs, "security.capability=") {
		t.Errorf("/cap: %+v", f)
	}
	want := Config{Cmd: []string{"run"}, Env: []string{"A=b"}, User: "1:2", WorkingDir: "/dir"}
	if diff := cmp.Diff(want, img.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// layoutOf writes an OCI layout with images by tag.
func layoutOf(t *testing.T, images map[string]v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for tag, img := range images {
		if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{refNameAnnotation: tag})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestImportFormats(t *testing.T) {
	b := shared(t)
	img := sampleImage(t)
	oci := layoutOf(t, map[string]v1.Image{"latest": img})
	var docker bytes.Buffer
	ref := mustTag(t, "sample:v1")
	if err := tarball.Write(ref, img, &docker); err != nil {
		t.Fatal(err)
	}
	plain := tarOf(t, oci).Bytes()
	sources := map[string]ImportRequest{
		"layout directory":   {Source: oci},
		"layout tar":         {Reader: bytes.NewReader(plain)},
		"layout tar.gz":      {Reader: gzipped(t, plain)},
		"layout tar.zst":     {Reader: zstded(t, plain)},
		"layout tar.xz":      {Reader: xzed(t, plain)},
		"docker archive":     {Reader: bytes.NewReader(docker.Bytes())},
		"docker archive.gz":  {Reader: gzipped(t, docker.Bytes()), Format: FormatDocker},
		"layout, said so":    {Source: oci, Format: FormatOCI},
		"layout, tag chosen": {Source: layoutOf(t, map[string]v1.Image{"one": empty.Image, "two": img}), Tag: "two"},
	}
	ids := map[string][]string{}
	for name, r := range sources {
		t.Run(name, func(t *testing.T) {
			r.Name = "imported"
			got, err := b.Import(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			checkSample(t, got)
			ids[got.ID] = append(ids[got.ID], name)
			if !slices.Contains(got.Names, "imported:latest") {
				t.Errorf("got names %v", got.Names)
			}
		})
	}
	if len(ids) != 1 {
		t.Errorf("one image has several ids: %v", ids)
	}
	t.Run("own name", func(t *testing.T) {
		got, err := b.Import(t.Context(), ImportRequest{Reader: bytes.NewReader(docker.Bytes())})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(got.Names, "sample:v1") {
			t.Errorf("got names %v", got.Names)
		}
	})
	t.Run("as a base", func(t *testing.T) {
		dir := tree(t, map[string]string{"f": "f", "Dockerfile": "FROM imported\nCOPY f /dir/f"})
		child, _ := build(t, b, BuildRequest{ContextDir: dir})
		if _, ok := factsIn(t, child.RootfsPath)["/dir/new"]; !ok {
			t.Error("the base is not in the image")
		}
		if child.Config.User != "1:2" {
			t.Errorf("got user %q", child.Config.User)
		}
	})
	checkNoLeftovers(t, b)
}

func gzipped(t *testing.T, data []byte) io.Reader {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	return written(t, w, data, &out)
}

func zstded(t *testing.T, data []byte) io.Reader {
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, w, data, &out)
}

func xzed(t *testing.T, data []byte) io.Reader {
	var out bytes.Buffer
	w, err := xz.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, w, data, &out)
}

func written(t *testing.T, w io.WriteCloser, data []byte, out *bytes.Buffer) io.Reader {
	t.Helper()
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImportRootfs(t *testing.T) {
	b := shared(t)
	data := tarOfEntries(t, []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}, {Name: "./bin/", Typeflag: tar.TypeDir}, {Name: "./bin/sh", Mode: 0o4755, Uid: 3},
		{Name: "/absolute/file"}, {Name: "etc/resolv.conf", Typeflag: tar.TypeSymlink, Linkname: "../../../../run/resolv.conf"},
		{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
	}, map[string]string{"./bin/sh": "#!", "/absolute/file": "inside"}).Bytes()
	for name, r := range map[string]io.Reader{"plain": bytes.NewReader(data), "xz": xzed(t, data)} {
		t.Run(name, func(t *testing.T) {
			img, err := b.Import(t.Context(), ImportRequest{Reader: r, Name: "rootfs:" + name, Config: &Config{Cmd: []string{"/bin/sh"}}})
			if err != nil {
				t.Fatal(err)
			}
			fsck(t, img.RootfsPath)
			facts := factsIn(t, img.RootfsPath)
			if got := readIn(t, img.RootfsPath, "/absolute/file"); got != "inside" {
				t.Errorf("got %q", got)
			}
			if f := facts["/bin/sh"]; f.Mode != "104755" || f.Owner != "3:0" {
				t.Errorf("/bin/sh: %+v", f)
			}
			if f := facts["/etc/resolv.conf"]; f.Link != "../../../../run/resolv.conf" {
				t.Errorf("/etc/resolv.conf: %+v", f)
			}
			if f := facts["/dev/null"]; f.Rdev != "1:3" {
				t.Errorf("/dev/null: %+v", f)
			}
			if !cmp.Equal(img.Config.Cmd, []string{"/bin/sh"}) {
				t.Errorf("got %v", img.Config)
			}
		})
	}
}

// Hazard 21: nothing in an archive gets out of it, and what tries is refused or
// confined.
func TestImportIsConfined(t *testing.T) {
	b := shared(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30)
	rel := strings.TrimPrefix(victim, "/")
	tests := map[string]struct {
		entries []tar.Header
		refused bool
	}{
		"dots":                       {[]tar.Header{{Name: up + rel}}, true},
		"dots in the middle":         {[]tar.Header{{Name: "a/" + up + rel}}, true},
		"absolute":                   {[]tar.Header{{Name: victim}}, false},
		"through a link":             {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/victim"}}, false},
		"through a relative link":    {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: up + strings.TrimPrefix(outside, "/")}, {Name: "l/victim"}}, false},
		"through two links":          {[]tar.Header{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a/" + up + outside}, {Name: "b/victim"}}, false},
		"hard link up":               {[]tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: up + rel}}, true},
		"hard link, absolute":        {[]tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: victim}, {Name: "h"}}, true},
		"hard link through a link":   {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/victim"}, {Name: "h"}}, true},
		"link replaced by a file":    {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: victim}, {Name: "l"}}, false},
		"deletion marks in a rootfs": {[]tar.Header{{Name: "a/.wh.b"}}, true},
	}
	contents := map[string]string{}
	for _, tt := range tests {
		for _, h := range tt.entries {
			contents[h.Name] = "overwritten"
		}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			img, err := b.Import(t.Context(), ImportRequest{Reader: tarOfEntries(t, tt.entries, contents), Name: "evil", Format: FormatRootfs})
			switch {
			case tt.refused && err == nil:
				t.Errorf("accepted: %v", sortedKeys(factsIn(t, img.RootfsPath)))
			case !tt.refused && err != nil:
				t.Errorf("refused: %v", err)
			case tt.refused && strings.Contains(name, "dots") && !errors.Is(err, ErrArchive):
				t.Errorf("got %v", err)
			}
			got, err := os.ReadFile(victim)
			if err != nil || string(got) != "untouched" {
				t.Fatalf("the file outside is %q %v", got, err)
			}
			left, err := os.ReadDir(outside)
			if err != nil || len(left) != 1 {
				t.Fatalf("outside are %v %v", left, err)
			}
			if img.RootfsPath != "" {
				for p := range factsIn(t, img.RootfsPath) {
					if f := factsIn(t, img.RootfsPath)[p]; f.Size == int64(len("untouched")) && f.Mode[:3] == "100" && readIn(t, img.RootfsPath, p) == "untouched" {
						t.Errorf("%s shows the file outside", p)
					}
				}
			}
		})
	}
	// The same inside the layers of an image, which only the engine unpacks.
	for name, tt := range tests {
		t.Run("layer, "+name, func(t *testing.T) {
			img, err := mutate.AppendLayers(empty.Image, layerOf(t, tarOfEntries(t, tt.entries, contents).Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			cfg = cfg.DeepCopy()
			cfg.Architecture, cfg.OS = "amd64", "linux"
			if img, err = mutate.ConfigFile(img, cfg); err != nil {
				t.Fatal(err)
			}
			got, err := b.Import(t.Context(), ImportRequest{Source: layoutOf(t, map[string]v1.Image{"x": img}), Name: "evil"})
			text, rerr := os.ReadFile(victim)
			if rerr != nil || string(text) != "untouched" {
				t.Fatalf("the file outside is %q %v (import: %v)", text, rerr, err)
			}
			if err == nil {
				for p, f := range factsIn(t, got.RootfsPath) {
					if f.Size == int64(len("untouched")) && f.Mode[:3] == "100" && readIn(t, got.RootfsPath, p) == "untouched" {
						t.Errorf("%s shows the file outside", p)
					}
				}
			}
		})
	}
	checkNoLeftovers(t, b)
}

// Members of an outer archive go nowhere either.
func TestImportArchiveMembers(t *testing.T) {
	b := shared(t)
	dir := layoutOf(t, map[string]v1.Image{"latest": sampleImage(t)})
	good, err := io.ReadAll(tarOf(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "victim")
	evil := tarOfEntries(t, []tar.Header{
		{Name: strings.Repeat("../", 30) + outside}, {Name: outside}, {Name: "blobs/sha256/../../../../x"},
		{Name: "blobs", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(outside)},
	}, map[string]string{outside: "x"}).Bytes()
	// Both in one stream: a tar ends with two zero blocks, which are cut off.
	joined := append(evil[:len(evil)-1024:len(evil)-1024], good...)
	img, err := b.Import(t.Context(), ImportRequest{Reader: bytes.NewReader(joined), Name: "joined"})
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, img)
	if _, err := os.Lstat(outside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written outside: %v", err)
	}
}

func TestImportErrors(t *testing.T) {
	b := shared(t)
	good, err := io.ReadAll(tarOf(t, layoutOf(t, map[string]v1.Image{"latest": sampleImage(t)})))
	if err != nil {
		t.Fatal(err)
	}
	rootfs := tarOfEntries(t, []tar.Header{{Name: "f"}, {Name: "g"}}, map[string]string{"f": strings.Repeat("f", 5000), "g": "g"}).Bytes()
	windows, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: "amd64", OS: "windows"})
	if err != nil {
		t.Fatal(err)
	}
	// Of a content that the store does not have already.
	fresh, err := mutate.AppendLayers(sampleImage(t), layerOf(t, tarOfEntries(t, []tar.Header{{Name: "random"}}, map[string]string{"random": rand.Text() + rand.Text()}).Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	damaged := layoutOf(t, map[string]v1.Image{"latest": fresh})
	damageLayers(t, damaged)
	foreign, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: "riscv64", OS: "linux", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		request ImportRequest
		is      error
		says    string
	}{
		"nothing":            {ImportRequest{}, ErrInvalidRequest, "nothing to read"},
		"no file":            {ImportRequest{Source: "/nonexistent/file"}, os.ErrNotExist, "/nonexistent/file"},
		"no archive":         {ImportRequest{Reader: strings.NewReader("this is no tar")}, ErrArchive, ""},
		"empty":              {ImportRequest{Reader: strings.NewReader("")}, ErrArchive, "empty"},
		"directory":          {ImportRequest{Source: t.TempDir()}, ErrArchive, ""},
		"bad name":           {ImportRequest{Reader: bytes.NewReader(good), Name: "Bad"}, ErrInvalidName, "Bad"},
		"bad format":         {ImportRequest{Reader: bytes.NewReader(good), Format: "zip"}, ErrInvalidRequest, "zip"},
		"truncated":          {ImportRequest{Reader: bytes.NewReader(rootfs[:3000]), Format: FormatRootfs}, ErrArchive, ""},
		"truncated gzip":     {ImportRequest{Reader: truncated(gzipped(t, rootfs), 60)}, ErrArchive, ""},
		"not docker":         {ImportRequest{Reader: bytes.NewReader(rootfs), Format: FormatDocker}, ErrArchive, ""},
		"not a layout":       {ImportRequest{Reader: bytes.NewReader(rootfs), Format: FormatOCI}, ErrArchive, ""},
		"damaged blob":       {ImportRequest{Source: damaged}, ErrArchive, "digest"},
		"other architecture": {ImportRequest{Source: layoutOf(t, map[string]v1.Image{"x": foreign})}, ErrInvalidRequest, "riscv64"},
		"other system":       {ImportRequest{Source: layoutOf(t, map[string]v1.Image{"x": windows})}, nil, "windows"},
		"no such tag":        {ImportRequest{Source: layoutOf(t, map[string]v1.Image{"x": windows}), Tag: "y"}, ErrArchive, "there are: x"},
	}
	before, err := b.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.request.Name == "" {
				tt.request.Name = "wrong"
			}
			_, err := b.Import(t.Context(), tt.request)
			if err == nil {
				t.Fatal("no error")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is no %v", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error does not say %q: %v", tt.says, err)
			}
		})
	}
	after, err := b.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != len(before) {
		t.Errorf("failed imports left images: %d, then %d", len(before), len(after))
	}
	checkNoLeftovers(t, b)
	if err := b.store.sweepBlobs(); err != nil {
		t.Fatal(err)
	}
	keep, err := b.store.referencedBlobs()
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := os.ReadDir(b.store.blobsDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(blobs) != len(keep) {
		t.Errorf("%d blobs for %d that are needed", len(blobs), len(keep))
	}
}

func truncated(r io.Reader, n int64) io.Reader { return io.LimitReader(r, n) }

// damageLayers flips a bit in every compressed layer of a layout.
func damageLayers(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, p := range found {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			continue
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	if damaged == 0 {
		t.Fatal("there is no compressed layer")
	}
}

func TestExportAndImportAgain(t *testing.T) {
	b := shared(t)
	dir := tree(t, map[string]string{"Dockerfile": "FROM " + busybox + `
RUN echo x > /x && ln /x /y && chmod 4755 /x && mknod /null c 1 3 && ln -s x /z && rm /bin/vi
ENV A=b
CMD ["x"]`})
	img, _ := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"exported:v2"}})
	imported, err := b.Import(t.Context(), ImportRequest{Source: layoutOf(t, map[string]v1.Image{"latest": sampleImage(t)}), Name: "exported:layers"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []Format{FormatDocker, FormatOCI, FormatRootfs} {
		for _, src := range []Image{img, imported} {
			t.Run(string(f)+" "+src.Names[0], func(t *testing.T) {
				var out bytes.Buffer
				if err := b.Export(t.Context(), src.ID, &out, f); err != nil {
					t.Fatal(err)
				}
				other := openBuilder(t, t.TempDir())
				got, err := other.Import(t.Context(), ImportRequest{Reader: &out, Config: &src.Config})
				if err != nil {
					t.Fatal(err)
				}
				if got.ID != src.ID {
					t.Errorf("got %s, want %s", got.ID, src.ID)
					if diff := cmp.Diff(factsIn(t, src.RootfsPath), factsIn(t, got.RootfsPath)); diff != "" {
						t.Errorf("(-exported +imported):\n%s", diff)
					}
				}
				if f == FormatDocker && !cmp.Equal(got.Names, src.Names) {
					t.Errorf("got names %v, want %v", got.Names, src.Names)
				}
			})
		}
	}
	if err := b.Export(t.Context(), "exported:v2", io.Discard, "zip"); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("got %v", err)
	}
	if err := b.Export(t.Context(), "nowhere", io.Discard, FormatOCI); !errors.Is(err, ErrImageNotFound) {
		t.Errorf("got %v", err)
	}
}

// An archive of one image under several names is one image; one asked for by
// name has that name alone.
func TestExportOfSeveralNames(t *testing.T) {
	b := shared(t)
	src, err := b.Import(t.Context(), ImportRequest{Source: layoutOf(t, map[string]v1.Image{"latest": sampleImage(t)}), Name: "several:one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Tag(t.Context(), src.ID, "several:two"); err != nil {
		t.Fatal(err)
	}
	if src, err = b.Image(t.Context(), src.ID); err != nil {
		t.Fatal(err)
	}
	other := openBuilder(t, t.TempDir())
	for _, f := range []Format{FormatDocker, FormatOCI} {
		for asked, want := range map[string][]string{"several:two": {"several:two"}, src.ID: src.Names} {
			var out bytes.Buffer
			if err := b.Export(t.Context(), asked, &out, f); err != nil {
				t.Fatal(err)
			}
			got, err := other.Import(t.Context(), ImportRequest{Reader: &out})
			if err != nil {
				t.Fatalf("%s of %s: %v", f, asked, err)
			}
			if got.ID != src.ID || !cmp.Equal(got.Names, want) {
				t.Errorf("%s of %s: got %s %v, want %s %v", f, asked, got.ID, got.Names, src.ID, want)
			}
			if err := other.Remove(t.Context(), got.ID, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sortedKeys(m map[string]fileFact) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return sorted(out)
}
