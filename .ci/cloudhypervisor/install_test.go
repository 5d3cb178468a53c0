// Package cloudhypervisor tests how cloud-hypervisor is installed.
package cloudhypervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
)

// binary is a program that has a version.
func binary(version string) string { return "#!/bin/sh\necho cloud-hypervisor " + version + "\n" }

func sum(data string) string {
	s := sha256.Sum256([]byte(data))
	return hex.EncodeToString(s[:])
}

func TestInstall(t *testing.T) {
	if goruntime.GOARCH != "amd64" {
		t.Skip("there is nothing to install elsewhere")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/asset" {
			http.NotFound(w, r)
			return
		}
		w.Write([]byte(binary("v53.0")))
	}))
	defer server.Close()
	script := "#!/bin/sh\nexit 3\n"
	dir := t.TempDir()
	local := filepath.Join(dir, "local")
	broken := filepath.Join(dir, "broken")
	for path, data := range map[string]string{local: binary("v53.1"), broken: script} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, there   string // what is installed before
		url, checksum string
		want, says    string // what is installed afterwards
		fails         bool
	}{
		{name: "new", url: server.URL + "/asset", checksum: sum(binary("v53.0")), want: binary("v53.0"), says: "is cloud-hypervisor v53.0"},
		{name: "upper case", url: server.URL + "/asset", checksum: strings.ToUpper(sum(binary("v53.0"))), want: binary("v53.0"), says: "is cloud-hypervisor v53.0"},
		{name: "older one there", there: binary("v52.0"), url: server.URL + "/asset", checksum: sum(binary("v53.0")), want: binary("v53.0"), says: "is cloud-hypervisor v53.0"},
		{name: "same there", there: binary("v53.0"), url: server.URL + "/nothing", checksum: sum(binary("v53.0")), want: binary("v53.0"), says: "is there"},
		{name: "same version there", there: binary("v53.0"), url: server.URL + "/nothing", want: binary("v53.0"), says: "stays"},
		{name: "from a file", url: "file://" + local, checksum: sum(binary("v53.1")), want: binary("v53.1"), says: "is cloud-hypervisor v53.1"},
		{name: "wrong checksum", there: binary("v52.0"), url: server.URL + "/asset", checksum: sum("something else"), want: binary("v52.0"), says: "not what was expected", fails: true},
		{name: "not the release", url: server.URL + "/asset", says: "not what was expected", fails: true},
		{name: "not reached", url: server.URL + "/nothing", checksum: sum("x"), says: "compare: sha256sum says " + sum("x"), fails: true},
		{name: "no checksum", url: server.URL + "/asset", checksum: "abc", says: "not a SHA-256", fails: true},
		{name: "does not run", url: "file://" + broken, checksum: sum(script), says: "does not run here", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefix := t.TempDir()
			target := filepath.Join(prefix, "bin", "cloud-hypervisor")
			if c.there != "" {
				if err := os.Mkdir(filepath.Dir(target), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(target, []byte(c.there), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("./install")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PREFIX=" + prefix, "no_proxy=*",
				"SIETCH_CLOUD_HYPERVISOR_URL=" + c.url, "SIETCH_CLOUD_HYPERVISOR_SHA256=" + c.checksum}
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails || !strings.Contains(string(out), c.says) {
				t.Errorf("got %v, want failure %t and %q:\n%s", err, c.fails, c.says, out)
			}
			got, err := os.ReadFile(target)
			if string(got) != c.want || err != nil && c.want != "" {
				t.Errorf("installed is %q (%v), want %q", got, err, c.want)
			}
			if st, err := os.Stat(target); err == nil && st.Mode().Perm() != 0o755 {
				t.Errorf("its mode is %v", st.Mode())
			}
			// Nothing is left beside it.
			left, err := filepath.Glob(filepath.Join(prefix, "bin", ".*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left: %q (%v)", left, err)
			}
		})
	}
}
