package arrakis

import (
	"path"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
)

// Dir is where commands run and relative paths begin.
const Dir = "/tmp/server_files"

// shellLine runs $1 with what Arrakis' commands expect around it. Both outputs
// are one pipe, because two have no order between them.
const shellLine = `mkdir -p ` + Dir + ` && cd ` + Dir + ` || exit 126
PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"; export PATH
exec 2>&1
if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi`

// CheckCommand refuses what is no command line.
func CheckCommand(cmd string) error {
	switch {
	case cmd == "":
		return usage("cmd is missing", "")
	case strings.ContainsRune(cmd, 0):
		return usage("cmd holds a NUL", "")
	}
	return nil
}

// Command is a shell line as root in [Dir]; its outputs both go to stdout.
func Command(name, cmd string) runtime.ExecRequest {
	return runtime.ExecRequest{Name: name, Args: []string{"/bin/sh", "-c", shellLine, "sh", cmd}, User: "0"}
}

// Path is a path of Arrakis' in the guest: relative ones begin in [Dir].
func Path(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return path.Join(Dir, p)
}
