package branches

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
)

// formatVersion is raised when a store can no longer be read by what read the
// version before. Values and files have versions of their own below it.
const formatVersion = 1

const formatPrefix = "sietch-store "

// checkFormat reads DIR/format. fresh is true when the directory holds no store
// yet; the caller writes the file once everything else is there.
func checkFormat(dir string) (fresh bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "format"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, unclaimed(dir)
	}
	if err != nil {
		return false, fmt.Errorf("read store format: %w", err)
	}
	v, err := parseFormat(string(b))
	if err != nil {
		return false, fmt.Errorf("read store format: %w", err)
	}
	if v != formatVersion {
		return false, fmt.Errorf("%w: store has version %d, this program reads %d", ErrFormat, v, formatVersion)
	}
	return false, nil
}

func parseFormat(s string) (int, error) {
	digits, ok := strings.CutPrefix(s, formatPrefix)
	digits, nl := strings.CutSuffix(digits, "\n")
	if !ok || !nl {
		return 0, &CorruptError{Kind: "format", Object: "format", Reason: "not a store's format file"}
	}
	v, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || strconv.FormatUint(v, 10) != digits {
		return 0, &CorruptError{Kind: "format", Object: "format", Reason: "no version number"}
	}
	return int(v), nil
}

// unclaimed makes sure that a directory without a format file is empty or a
// store whose creation was interrupted, and not something else's.
func unclaimed(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read store directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, wantedName, "index", "packs", reserveName:
		default:
			if !strings.HasPrefix(e.Name(), ".format") { // renameio's temporary
				return fmt.Errorf("open store: %s is not empty and has no format file (found %s)", dir, e.Name())
			}
		}
	}
	packs, err := os.ReadDir(filepath.Join(dir, "packs"))
	if err == nil && len(packs) > 0 {
		return &CorruptError{Kind: "format", Object: "format", Reason: "missing, but there are packs"}
	}
	return nil
}

func writeFormat(dir string) error {
	name := filepath.Join(dir, "format")
	if err := renameio.WriteFile(name, fmt.Appendf(nil, "%s%d\n", formatPrefix, formatVersion), 0o600); err != nil {
		return fmt.Errorf("write store format: %w", err)
	}
	return osFS{}.syncDir(dir)
}
