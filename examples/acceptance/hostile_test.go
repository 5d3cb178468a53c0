package acceptance

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHostileArchives is hazard 21 for what is sent as a tar: no name and no link
// in it leads out of where it is unpacked, be that the guest or the host.
func TestHostileArchives(t *testing.T) {
	r := apart(t)
	s := r.serve(t)
	name := r.runSmall(t)
	defer r.ok(t, "rm", "-f", name)
	r.in(t, name, "mkdir -p /srv/in /srv/out")
	outside := t.TempDir() // of the host
	up := strings.Repeat("../", 12)

	put := func(method, path string, body []byte) (int, string) {
		q, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/x-tar")
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return a.StatusCode, string(text)
	}
	archive := func(members ...tar.Header) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range append(members, tar.Header{Name: "Dockerfile", Size: 13}) {
			h.Mode = 0o755
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			w.Write([]byte("FROM scratch\n")[:h.Size])
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	// hostile are archives that would write into dir.
	hostile := func(dir string) map[string][]byte {
		return map[string][]byte{
			"dots":              archive(tar.Header{Name: up + dir[1:] + "/evil", Size: 4}),
			"absolute":          archive(tar.Header{Name: dir + "/evil", Size: 4}),
			"link and file":     archive(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: dir}, tar.Header{Name: "l/evil", Size: 4}),
			"dotted link":       archive(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: up + dir[1:]}, tar.Header{Name: "l/evil", Size: 4}),
			"link to a link":    archive(tar.Header{Name: "m", Typeflag: tar.TypeSymlink, Linkname: dir}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "m"}, tar.Header{Name: "l/evil", Size: 4}),
			"link to the file":  archive(tar.Header{Name: "evil", Typeflag: tar.TypeSymlink, Linkname: dir + "/evil"}, tar.Header{Name: "evil", Size: 4}),
			"directory by link": archive(tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: dir}, tar.Header{Name: "d/evil/", Typeflag: tar.TypeDir}),
			"hard link":         archive(tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: up + "etc/passwd"}, tar.Header{Name: "h", Size: 4}),
		}
	}
	passwd := r.in(t, name, "md5sum < /etc/passwd")
	for what, body := range hostile("/srv/out") {
		status, text := put("PUT", "/v1/sandboxes/"+name+"/files/tar?path="+url.QueryEscape("/srv/in"), body)
		if got := r.in(t, name, "ls /srv/out; rm -rf /srv/in /srv/out; mkdir -p /srv/in /srv/out; md5sum < /etc/passwd"); got != passwd {
			t.Errorf("%s in the guest (%d %s): got %q", what, status, text, got)
		}
		if status >= 500 {
			t.Errorf("%s in the guest: got %d %s", what, status, text)
		}
	}
	for what, body := range hostile(outside) {
		for _, path := range []string{"/v1/builds?progress=quiet", "/v1/images/import?format=rootfs&name=hostile"} {
			status, text := put("POST", path, body)
			if left, err := filepath.Glob(outside + "/*"); err != nil || len(left) > 0 {
				t.Errorf("%s to %s (%d %s): on the host there is %v, %v", what, path, status, text, left, err)
				os.RemoveAll(left[0])
			}
			if status >= 500 {
				t.Errorf("%s to %s: got %d %s", what, path, status, text)
			}
		}
	}
	r.try(t, "image", "rm", "hostile")
}

// TestExecDoesNotWaitForGrandchildren is hazard 20: a command that has ended is
// answered, whoever else holds its output.
func TestExecDoesNotWaitForGrandchildren(t *testing.T) {
	r := apart(t)
	s := r.serve(t)
	name := r.runSmall(t)
	defer r.ok(t, "rm", "-f", name)
	for _, line := range []string{"sleep 300 & echo done", "setsid sleep 300 & echo done", "(trap '' HUP TERM; sleep 300) & echo done"} {
		began := time.Now()
		got := s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["sh","-c","`+line+`"]}`)
		if took := time.Since(began); took > within(30*time.Second) || !strings.Contains(got, `"stdout":"done\n"`) {
			t.Errorf("%s: got %s after %s", line, got, took)
		}
	}
}
