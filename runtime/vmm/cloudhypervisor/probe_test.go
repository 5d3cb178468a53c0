package cloudhypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/host"
)

// counted is a cloud-hypervisor that only knows its version, and counts how
// often it was asked.
func counted(t *testing.T, version string) (binary string, asked func() int) {
	t.Helper()
	dir := t.TempDir()
	binary = filepath.Join(dir, "cloud-hypervisor")
	script := "#!/bin/sh\necho x >> " + dir + "/asked\necho 'cloud-hypervisor " + version + "'\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return binary, func() int {
		data, _ := os.ReadFile(dir + "/asked")
		return strings.Count(string(data), "x")
	}
}

func TestProbeRemembers(t *testing.T) {
	binary, asked := counted(t, "v54.1.2")
	cache := filepath.Join(t.TempDir(), "new", "trial.json")
	identity := func() vmm.Identity {
		t.Helper()
		id, err := New(Options{Binary: binary, TrialCache: cache}).Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	cpu, err := host.CPU()
	if err != nil {
		t.Fatal(err)
	}
	want := vmm.Identity{Driver: "cloud-hypervisor", Version: "54.1.2", Machine: "pci", Accel: vmm.KVM, CPU: cpu}
	for range 3 {
		if got := identity(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	// Another binary under the same name is asked anew; so is one whose cache is
	// damaged.
	if err := os.Chtimes(binary, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	identity()
	if n := asked(); n != 2 {
		t.Errorf("after a change asked %d times, want 2", n)
	}
	if err := os.WriteFile(cache, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	identity()
	if n := asked(); n != 3 {
		t.Errorf("after damage asked %d times, want 3", n)
	}
}

func TestProbeRefuses(t *testing.T) {
	old, _ := counted(t, "v52.9")
	strange, _ := counted(t, "unknown")
	for what, c := range map[string]struct{ binary, says string }{
		"no binary":       {"/nonexistent/cloud-hypervisor", "find cloud-hypervisor"},
		"too old":         {old, "install v53.0 or newer"},
		"strange version": {strange, "unknown answer"},
		"another program": {"/bin/false", "version"},
	} {
		d := New(Options{Binary: c.binary})
		if _, err := d.Identity(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", what, err, c.says)
		}
		if _, err := d.Launch(t.Context(), fakeSpec(t)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: launch: got %v, want %q", what, err, c.says)
		}
	}
}

func TestVersions(t *testing.T) {
	for line, want := range map[string][2]string{
		"v53.0.0":            {"53.0.0", "53"},
		"v53.0":              {"53.0", "53"},
		"v53.1-12-g0123abcd": {"53.1-12-g0123abcd", "53"},
		"v153.0.0":           {"153.0.0", "153"},
	} {
		binary, _ := counted(t, line)
		id, err := New(Options{Binary: binary}).Identity(t.Context())
		if err != nil || id.Version != want[0] || majorVersion(id.Version) != want[1] {
			t.Errorf("%s: got %q, %q, %v, want %q", line, id.Version, majorVersion(id.Version), err, want)
		}
	}
	if got := majorVersion("strange"); got != "strange" {
		t.Errorf("of no version: got %q", got)
	}
}
