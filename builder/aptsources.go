package builder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

// aptSource is one repository of apt's configuration.
type aptSource struct {
	uri        string
	suite      string
	components []string
	signedBy   string // path of a keyring, or empty
}

// line is the source in the one-line form.
func (s aptSource) line() string {
	options := ""
	if s.signedBy != "" {
		options = "[signed-by=" + s.signedBy + "] "
	}
	return "deb " + options + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// hostSources reads the repositories the host's apt is configured with.
func hostSources(ctx context.Context) ([]aptSource, error) {
	list, parts := aptPaths(ctx)
	files := []string{list}
	entries, err := os.ReadDir(parts)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read apt sources: %w", err)
	}
	for _, e := range entries {
		files = append(files, filepath.Join(parts, e.Name()))
	}
	sort.Strings(files[1:])
	var out []aptSource
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt sources: %w", err)
		}
		switch filepath.Ext(f) {
		case ".list":
			out = append(out, parseOneLine(string(b))...)
		case ".sources":
			out = append(out, parseDeb822(string(b))...)
		}
	}
	return out, nil
}

// aptPaths asks apt where its sources are.
func aptPaths(ctx context.Context) (list, parts string) {
	list, parts = "/etc/apt/sources.list", "/etc/apt/sources.list.d"
	out, err := exec.CommandContext(ctx, "apt-config", "shell", "L", "Dir::Etc::sourcelist/f", "P", "Dir::Etc::sourceparts/d").Output()
	if err != nil {
		return list, parts
	}
	for _, l := range strings.Split(string(out), "\n") {
		k, v, _ := strings.Cut(strings.TrimSpace(l), "=")
		switch v = strings.Trim(v, "'"); {
		case k == "L" && v != "":
			list = v
		case k == "P" && v != "":
			parts = v
		}
	}
	return list, parts
}

// aptProxies are the proxies apt uses, as environment variables that the apt of
// a bootstrap understands and that leave no trace in the image.
func aptProxies(ctx context.Context) []string {
	var env []string
	for _, scheme := range []string{"http", "https"} {
		out, err := exec.CommandContext(ctx, "apt-config", "shell", "P", "Acquire::"+scheme+"::Proxy").Output()
		if err != nil {
			continue
		}
		_, v, _ := strings.Cut(strings.TrimSpace(string(out)), "=")
		if v = strings.Trim(v, "'"); v != "" && v != "DIRECT" {
			env = append(env, scheme+"_proxy="+v)
		}
	}
	return env
}

// parseOneLine reads lines of the form "deb [option=value …] URI suite component …".
func parseOneLine(text string) []aptSource {
	var out []aptSource
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '\t' {
			continue
		}
		s := aptSource{}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			var options string
			options, rest, ok = strings.Cut(rest[1:], "]")
			if !ok {
				continue
			}
			for _, o := range strings.Fields(options) {
				if k, v, _ := strings.Cut(o, "="); strings.EqualFold(k, "signed-by") {
					s.signedBy = keyringPath(v)
				}
			}
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		s.uri, s.suite, s.components = fields[0], fields[1], fields[2:]
		out = append(out, s)
	}
	return out
}

// parseDeb822 reads stanzas of "Key: value" lines.
func parseDeb822(text string) []aptSource {
	var out []aptSource
	stanza := map[string]string{}
	flush := func() {
		defer clear(stanza)
		if strings.EqualFold(stanza["enabled"], "no") || !contains(strings.Fields(stanza["types"]), "deb") {
			return
		}
		for _, uri := range strings.Fields(stanza["uris"]) {
			for _, suite := range strings.Fields(stanza["suites"]) {
				out = append(out, aptSource{
					uri: uri, suite: suite,
					components: strings.Fields(stanza["components"]),
					signedBy:   keyringPath(strings.TrimSpace(stanza["signed-by"])),
				})
			}
		}
	}
	key := ""
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			stanza[key] += "\n" + strings.TrimSpace(line)
		default:
			k, v, _ := strings.Cut(line, ":")
			key = strings.ToLower(strings.TrimSpace(k))
			stanza[key] = strings.TrimSpace(v)
		}
	}
	flush()
	return out
}

// keyringPath keeps what is a path; fingerprints and keys in the text are left
// to the trusted keyrings of the host.
func keyringPath(v string) string {
	if strings.HasPrefix(v, "/") && !strings.ContainsAny(v, " \t\n,") {
		return v
	}
	return ""
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// osRelease reads the host's distribution and code name.
func osRelease() (id, codename string) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", ""
	}
	for _, line := range strings.Split(string(b), "\n") {
		k, v, _ := strings.Cut(line, "=")
		switch v = strings.Trim(strings.TrimSpace(v), `"'`); k {
		case "ID":
			id = v
		case "VERSION_CODENAME":
			codename = v
		}
	}
	return id, codename
}
