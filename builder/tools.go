package builder

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// toolPackages says which Debian package brings a tool.
var toolPackages = map[string]string{
	"mkfs.ext4":  "e2fsprogs",
	"runc":       "runc",
	"mmdebstrap": "mmdebstrap",
}

// findTool looks a program up, also where ordinary users' PATH does not.
func findTool(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	hint := "apt-get install " + toolPackages[name]
	return "", newDetailError(kindMissingTool, hint, nil, "find %s: it is not installed", name)
}

// runTool runs a program in the C locale; what it printed is part of the error.
func runTool(ctx context.Context, name string, env []string, args ...string) error {
	path, err := findTool(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), append([]string{"LC_ALL=C"}, env...)...)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(out) == 0:
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w: %s", name, err, lastLines(string(out), 5))
}

// lastLines are the last n lines of a text.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
