package guestboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// chownToDownloader gives dir to the user apt downloads as, where there is one
// and we may. Without it apt downloads as root and says so.
func chownToDownloader(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	b, err := os.ReadFile("/etc/passwd")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != "_apt" {
			continue
		}
		uid, err := strconv.Atoi(f[2])
		if err != nil {
			return fmt.Errorf("user _apt: %w", err)
		}
		return os.Chown(dir, uid, -1)
	}
	return nil
}
