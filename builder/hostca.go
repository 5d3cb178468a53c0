package builder

import (
	"os"
	"path/filepath"
	"strings"
)

// caVariables name the certificate bundle for the programs that do not look at
// the same file. apt over https reads none of them.
var caVariables = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	"GIT_SSL_CAINFO", "PIP_CERT",
}

// HostCABundle is the host's bundle of certificate authorities when it holds
// private ones, which what runs in an image cannot know: one that the user's
// environment points at, or the system's when the administrator added to it.
// It is empty on a host with public authorities only.
func HostCABundle() string {
	if p := os.Getenv("SSL_CERT_FILE"); isFile(p) {
		if abs, err := filepath.Abs(p); err == nil {
			return abs
		}
	}
	for added, bundle := range map[string]string{
		"/usr/local/share/ca-certificates/*.crt":   "/etc/ssl/certs/ca-certificates.crt",
		"/usr/local/share/ca-certificates/*/*.crt": "/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/ca-trust/source/anchors/*":       "/etc/pki/tls/certs/ca-bundle.crt",
	} {
		if found, err := filepath.Glob(added); err == nil && len(found) > 0 && isFile(bundle) {
			return bundle
		}
	}
	return ""
}

// CAEnvironment points the usual programs at a bundle at path. Variables that
// env sets already are left out.
func CAEnvironment(path string, env []string) []string {
	set := map[string]bool{}
	for _, kv := range env {
		k, _, _ := strings.Cut(kv, "=")
		set[k] = true
	}
	var out []string
	for _, k := range caVariables {
		if !set[k] {
			out = append(out, k+"="+path)
		}
	}
	return out
}

func isFile(p string) bool {
	if p == "" {
		return false
	}
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular()
}
