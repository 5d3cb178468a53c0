package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// makeExt4 makes a file system of the content of dir, or an empty one.
func makeExt4(t *testing.T, file, dir string, size int64) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", "-F", "-m", "0"}
	if dir != "" {
		args = append(args, "-d", dir)
	}
	if out, err := exec.Command("mkfs.ext4", append(args, file)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
}

// checkClean fails when a file system was not left in order.
func checkClean(t *testing.T, file string) {
	t.Helper()
	out, err := exec.Command("e2fsck", "-fn", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), "recover") {
		t.Errorf("e2fsck -fn: %v\n%s", err, out)
	}
}

// writeFiles fills a directory: name to content; a name that ends with / is a
// directory, content that starts with "-> " a link.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch target, link := strings.CutPrefix(content, "-> "); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(content), 0o755)
		}
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			t.Fatal(err)
		}
	}
}
