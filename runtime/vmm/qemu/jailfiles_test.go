package qemu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// TestJailFiles: what QEMU may reach by path are its machine's files, one by one.
func TestJailFiles(t *testing.T) {
	dir, runDir := t.TempDir(), t.TempDir()
	s := vmm.Spec{
		RunDir: runDir, MemoryFile: dir + "/memory", Kernel: dir + "/kernel", Initramfs: dir + "/initramfs",
		Disks:      []vmm.Disk{{ID: "image", Path: dir + "/image", ReadOnly: true}, {ID: "layer", Path: dir + "/layer"}},
		ConsoleLog: dir + "/console.log", MainLog: dir + "/main.log",
		Jail: &vmm.Jail{UID: 64999, GID: 64998, Cgroups: []string{"/group"}},
	}
	for _, c := range []struct {
		major, minor int
		written      bool
		restore      *vmm.Restore
	}{{7, 2, true, nil}, {8, 2, false, nil}, {10, 0, false, &vmm.Restore{}}} {
		s.Restore = c.restore
		j, err := makeJail(s, &findings{binary: "/usr/bin/qemu-system-x86_64", major: c.major, minor: c.minor})
		if err != nil {
			t.Fatal(err)
		}
		f := j.Files
		want := []string{"/dev/null", dir + "/layer", s.ConsoleLog, s.MainLog, runDir + "/pid"}
		if c.written {
			want = append(want, s.MemoryFile)
		}
		got := slices.Sorted(slices.Values(f.Write))
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("QEMU %d.%d may write %q, want %q", c.major, c.minor, got, want)
		}
		for _, made := range []string{s.ConsoleLog, s.MainLog, runDir + "/pid"} {
			if _, err := os.Stat(made); err != nil {
				t.Error(err)
			}
		}
		if boots := slices.Contains(f.Read, s.Kernel) && slices.Contains(f.Read, s.Initramfs); boots == (c.restore != nil) {
			t.Errorf("restored %t: may read kernel and initramfs: %t", c.restore != nil, boots)
		}
		if len(f.Make) > 0 || !slices.Equal(f.Control, []string{"/dev/kvm"}) || !slices.Equal(j.Cgroups, s.Jail.Cgroups) {
			t.Errorf("jail is %+v", j)
		}
		all := slices.Concat(f.Read, f.Run, f.Write)
		for _, secret := range []string{dir + "/sandbox.json", runDir + "/qmp.sock", "/etc/shadow", "/root/.ssh/id", "/home/u/x",
			"/var/lib/sietch/store", "/run/sietch/x", "/dev/mem", "/dev/sda", "/boot/x"} {
			for _, path := range all {
				if path == secret || strings.HasPrefix(secret, strings.TrimSuffix(filepath.Clean(path), "/")+"/") {
					t.Errorf("%s is reached by the right to %s", secret, path)
				}
			}
		}
	}
}

// TestInstallation: a QEMU of one's own brings its firmware along.
func TestInstallation(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "bin", "qemu")
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "qemu-system-x86_64")
	if err := os.Symlink(binary, link); err != nil {
		t.Fatal(err)
	}
	got := installation(link)
	for _, want := range []string{binary, dir + "/share", dir + "/lib", dir + "/bin/pc-bios"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not among %q", want, got)
		}
	}
	if slices.Contains(got, dir) || slices.Contains(got, dir+"/bin") {
		t.Errorf("whole folders may be read: %q", got)
	}
}
