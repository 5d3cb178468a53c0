package builder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMakeLayer(t *testing.T) {
	for name, size := range map[string]int64{"smallest": MinLayerBytes, "odd": 100<<20 + 12345, "4 GiB": 4 << 30, "100 GiB": 100 << 30} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "layer")
			start := time.Now()
			if err := MakeLayer(t.Context(), path, size); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			fsck(t, path)
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if want := size &^ 4095; st.Size() != want {
				t.Errorf("got %d bytes, want %d", st.Size(), want)
			}
			used := st.Sys().(*syscall.Stat_t).Blocks * 512
			t.Logf("%v, %d KiB used", took, used>>10)
			if used > 1<<20+size/2000 {
				t.Errorf("an empty layer of %d bytes takes %d", size, used)
			}
			if st.Mode().Perm() != 0o600 {
				t.Errorf("got mode %o", st.Mode().Perm())
			}
			out, err := exec.Command("/usr/sbin/dumpe2fs", "-h", path).Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"has_journal", "metadata_csum", "Reserved block count:     0\n", "Filesystem state:         clean"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("dumpe2fs does not say %q:\n%s", want, out)
				}
			}
			groups, err := exec.Command("/usr/sbin/dumpe2fs", path).Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(string(groups), "\n") {
				if strings.HasPrefix(line, "Group ") && strings.Contains(line, "(Blocks ") && !strings.Contains(line, "ITABLE_ZEROED") {
					t.Fatalf("the guest would initialise inode tables: %s", line)
				}
			}
		})
	}
	t.Run("is there already", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "layer")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := MakeLayer(t.Context(), path, 1<<30); !errors.Is(err, os.ErrExist) {
			t.Errorf("got %v", err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
			t.Errorf("it is now %q %v", b, err)
		}
	})
	t.Run("too small", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "layer")
		if err := MakeLayer(t.Context(), path, 1<<20); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Error("something is left")
		}
	})
}
