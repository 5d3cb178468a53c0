package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The import arrows of docs/architecture.md. A package may always import what
// lies in its own folder of the table, and the folder's own package, not those
// beneath it, what the table lists.
// The longest folder that holds a package decides.
var arrows = map[string][]string{
	"cmd/sietch": {"runtime", "runtime/api", "runtime/api/mcp", "runtime/remote"},

	"runtime":               {"builder", "builder/guestboot", "branches", "netplumb", "guestinit/proto", "guestinit/proto/tartree", "guestinit/embedded"},
	"runtime/vmm":           nil,
	"runtime/vmm/vmmtest":   {"runtime/guestmem", "runtime/vmm", "runtime/vmm/process"},
	"runtime/agent":         {"guestinit/proto", "guestinit/proto/tartree"},
	"runtime/api":           {"runtime"},
	"runtime/api/arrakis":   {"runtime"},
	"runtime/api/client":    nil,
	"runtime/api/guestfile": {"runtime"},
	"runtime/api/mcp":       {"runtime", "runtime/api/arrakis", "runtime/api/guestfile", "runtime/api/rfb"},
	"runtime/api/rfb":       nil,
	"runtime/api/wire":      {"runtime/api/client"},
	"runtime/testlane":      nil,
	// The engine of a server elsewhere: what the API says, and trees as tar.
	"runtime/remote": {"runtime", "runtime/api/client", "runtime/api/wire", "guestinit/proto/tartree"},

	// The client for Go: what is generated, and nothing of the machinery.
	"sdk/go/sietch": {"runtime/api/client", "runtime/api/wire"},

	// Support for tests of others, linked into no product.
	"builder/buildertest": {"builder", "runtime/testlane"},

	"builder":          nil,
	"branches":         nil,
	"netplumb":         nil,
	"guestinit":        nil,
	"examples":         nil,
	"examples/show":    {"examples/desktop", "examples/editor", "examples/tools", "examples/treesearch"},
	"examples/desktop": {"examples/tools", "runtime/api/rfb"},
	"sdk":              nil,
	"docs":             nil,
}

// Modules that one folder alone may import, so that replacing one of them, or
// reading how it is used, is a matter of that folder.
var soleImporters = map[string]string{
	"github.com/moby/buildkit":               "builder",
	"github.com/google/go-containerregistry": "builder",
	"github.com/dgraph-io/badger":            "branches",
	"github.com/vishvananda/netlink":         "netplumb",
	"github.com/vishvananda/netns":           "netplumb",
	"github.com/google/nftables":             "netplumb",
	"github.com/urfave/cli":                  "cmd/sietch",
	"github.com/getkin/kin-openapi":          "runtime/api",
	"github.com/prometheus/client_golang":    "runtime/api",
}

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Imports    []string
	Module     *struct{ Path string }
}

func TestImportArrows(t *testing.T) {
	module, pkgs := list(t, nil)
	for _, v := range violations(module, pkgs) {
		t.Error(v)
	}
}

// TestImportArrowsFindsViolations adds files with forbidden imports to the real
// tree, by overlay, and wants each of them named.
func TestImportArrowsFindsViolations(t *testing.T) {
	tests := []struct{ folder, name, imports, want string }{
		{"netplumb", "netplumb", "M/branches", "netplumb imports branches"},
		{"branches", "branches", "github.com/vishvananda/netlink", "branches imports github.com/vishvananda/netlink: only netplumb may"},
		{"cmd/sietch", "main", "M/builder", "cmd/sietch imports builder"},
		{"runtime/vmm", "vmm", "M/guestinit/proto", "runtime/vmm imports guestinit/proto"},
		{"stray", "stray", "fmt", "stray: no folder of the table holds it"},
	}
	add := map[string]string{}
	module, _ := goEnvModule(t)
	for _, tt := range tests {
		add[tt.folder+"/zz_arrow.go"] = fmt.Sprintf("package %s\n\nimport _ %q\n", tt.name, strings.Replace(tt.imports, "M/", module+"/", 1))
	}
	module, pkgs := list(t, add)
	got := violations(module, pkgs)
	for _, tt := range tests {
		if !slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, tt.want) }) {
			t.Errorf("%s importing %s was not found; got:\n%s", tt.folder, tt.imports, strings.Join(got, "\n"))
		}
	}
}

func TestViolations(t *testing.T) {
	module := struct{ Path string }{"m"}
	pkg := func(path string, imports ...string) listed { return listed{path, imports, &module} }
	tests := []struct {
		name string
		pkg  listed
		want []string
	}{
		{"own folder", pkg("m/branches/pack", "m/branches", "fmt"), nil},
		{"only runtime itself joins", pkg("m/runtime/guestmem", "m/branches"), []string{"runtime/guestmem imports branches: it may not"}},
		{"runtime joins", pkg("m/runtime", "m/builder", "m/runtime/vmm/qemu", "m/guestinit/embedded"), nil},
		{"runtime and the inside of another", pkg("m/runtime", "m/builder/engine"), []string{"runtime imports builder/engine: it may not"}},
		{"a sub-folder's own rule", pkg("m/runtime/vmm/qemu", "m/runtime/vmm", "m/runtime"), []string{"runtime/vmm/qemu imports runtime: it may not"}},
		{"a name that only begins alike", pkg("m/buildersomething", "fmt"), []string{"buildersomething: no folder of the table holds it"}},
		{"sole importer, sub-package", pkg("m/builder/engine", "github.com/moby/buildkit/client"), nil},
		{"foreign importer, major version", pkg("m/runtime", "github.com/dgraph-io/badger/v4"), []string{"runtime imports github.com/dgraph-io/badger/v4: only branches may"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, violations("m", []listed{tt.pkg})); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// violations names every import that the tables forbid, sorted.
func violations(module string, pkgs []listed) []string {
	var found []string
	for _, p := range pkgs {
		if p.Module == nil || p.Module.Path != module {
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		folder, ok := folderOf(name)
		if !ok {
			found = append(found, name+": no folder of the table holds it")
			continue
		}
		for _, imp := range p.Imports {
			if inside, ok := strings.CutPrefix(imp, module+"/"); ok {
				allowed := name == folder && slices.Contains(arrows[folder], inside)
				if !allowed && !under(inside, folder) {
					found = append(found, fmt.Sprintf("%s imports %s: it may not", name, inside))
				}
				continue
			}
			for dep, owner := range soleImporters {
				if under(imp, dep) && !under(name, owner) {
					found = append(found, fmt.Sprintf("%s imports %s: only %s may", name, imp, owner))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// folderOf finds the longest folder of the table that holds a package.
func folderOf(name string) (string, bool) {
	best, ok := "", false
	for folder := range arrows {
		if under(name, folder) && len(folder) > len(best) {
			best, ok = folder, true
		}
	}
	return best, ok
}

func under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// list asks the go command for all packages of the module and what they need,
// with files added by overlay.
func list(t *testing.T, add map[string]string) (module string, pkgs []listed) {
	t.Helper()
	module, root := goEnvModule(t)
	args := []string{"list", "-e", "-deps", "-json=ImportPath,Imports,Module"}
	if add != nil {
		dir := t.TempDir()
		overlay := struct{ Replace map[string]string }{map[string]string{}}
		for name, text := range add {
			file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay.Replace[filepath.Join(root, name)] = file
		}
		data, err := json.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-overlay", file)
	}
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatal("go list names no package")
	}
	return module, pkgs
}

// goEnvModule tells the module's path and its root folder.
func goEnvModule(t *testing.T) (path, root string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-json=Path,Dir").Output()
	if err != nil {
		t.Fatalf("go list -m: %v", err)
	}
	var m struct{ Path, Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m.Path, m.Dir
}
