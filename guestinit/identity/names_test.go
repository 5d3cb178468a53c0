package identity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// tree makes files below a new directory: a name that ends in / is a directory,
// content that starts with "-> " a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		path, content := filepath.Join(root, name), files[name]
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch target, link := strings.CutPrefix(content, "-> "); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestResolve(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/plain":           "x",
		"etc/relative":        "-> ../run/resolve/stub.conf",
		"etc/absolute":        "-> /run/resolv.conf",
		"etc/to-link":         "-> absolute",
		"etc/out":             "-> ../../../../etc/plain",
		"etc/loop":            "-> loop",
		"run/":                "",
		"usr/etc/hosts":       "x",
		"linked":              "-> usr/etc",
		"etc/through-dir":     "-> /linked/hosts",
		"etc/dangling-middle": "-> /no/where/file",
	})
	for path, want := range map[string]string{
		"etc/plain":           "etc/plain",
		"etc/missing":         "etc/missing",
		"no/etc/at-all":       "no/etc/at-all",
		"etc/relative":        "run/resolve/stub.conf",
		"etc/absolute":        "run/resolv.conf",
		"etc/to-link":         "run/resolv.conf",
		"etc/out":             "etc/plain", // never above the root
		"linked/hosts":        "usr/etc/hosts",
		"etc/through-dir":     "usr/etc/hosts",
		"etc/dangling-middle": "no/where/file",
	} {
		got, err := resolve(root, filepath.Join(root, path))
		if err != nil || got != filepath.Join(root, want) {
			t.Errorf("%s: got %s, %v; want %s", path, got, err, want)
		}
	}
	if _, err := resolve(root, filepath.Join(root, "etc/loop")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("loop: %v", err)
	}
}

// mounts notes what would be mounted, relative to root.
func mounts(t *testing.T, o NamesOptions) (*Names, map[string]string, []string) {
	t.Helper()
	got := make(map[string]string)
	o.Dir = filepath.Join(t.TempDir(), "names")
	o.mount = func(src, dst string) error {
		if fi, err := os.Lstat(dst); err != nil || !fi.Mode().IsRegular() {
			return unix.ENOENT // as the kernel would for a file over nothing
		}
		rel, err := filepath.Rel(o.Root, dst)
		if err != nil {
			return err
		}
		got[rel] = filepath.Base(src)
		return nil
	}
	n, remarks, err := Mount(o)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, r := range remarks {
		said = append(said, strings.ReplaceAll(r.Error(), o.Root, ""))
	}
	return n, got, said
}

func TestMount(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   map[string]string
		init    bool
		want    map[string]string
		remarks []string
	}{
		{"Debian", map[string]string{"etc/hosts": "", "etc/hostname": "", "etc/resolv.conf": "", "etc/machine-id": "", "var/lib/dbus/machine-id": "-> /etc/machine-id",
			"proc/sys/kernel/random/boot_id": ""}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf", "etc/machine-id": "machine-id",
				"proc/sys/kernel/random/boot_id": "boot_id"}, nil},
		{"a second machine id", map[string]string{"etc/machine-id": "", "var/lib/dbus/machine-id": "0123"}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf", "etc/machine-id": "machine-id",
				"var/lib/dbus/machine-id": "machine-id"}, nil},
		{"nothing at all", nil, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf"}, nil},
		{"an init system", nil, true,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf", "etc/machine-id": "machine-id"}, nil},
		{"dangling link", map[string]string{"etc/resolv.conf": "-> ../run/systemd/resolve/stub-resolv.conf"}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "run/systemd/resolve/stub-resolv.conf": "resolv.conf"}, nil},
		{"link to where nothing can be made", map[string]string{"etc/resolv.conf": "-> /proc/net/pnp", "proc": "not a directory here"}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf"}, nil},
		{"a directory", map[string]string{"etc/resolv.conf/x": ""}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname"}, []string{"mount over /etc/resolv.conf: it is no file"}},
		{"etc is a file", map[string]string{"etc": "x"}, false, map[string]string{},
			[]string{"mount over /etc/hostname", "mount over /etc/hosts", "mount over /etc/resolv.conf"}},
		{"a link to itself", map[string]string{"etc/hosts": "-> hosts"}, false,
			map[string]string{"etc/hosts": "hosts", "etc/hostname": "hostname", "etc/resolv.conf": "resolv.conf"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got, remarks := mounts(t, NamesOptions{Root: tree(t, c.files), DNS: "169.254.77.1", MachineID: c.init})
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if len(remarks) != len(c.remarks) {
				t.Fatalf("remarks %q, want %q", remarks, c.remarks)
			}
			for i := range remarks {
				if !strings.HasPrefix(remarks[i], c.remarks[i]) {
					t.Errorf("remark %q, want %q", remarks[i], c.remarks[i])
				}
			}
		})
	}
}

func TestNamesContent(t *testing.T) {
	read := func(n *Names, name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(n.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	n, _, _ := mounts(t, NamesOptions{Root: t.TempDir(), DNS: "169.254.77.1"})
	a := newFake(t, n)
	apply := func(id proto.Identity) {
		t.Helper()
		if err := a.Apply(context.Background(), id); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(n, resolv); got != "nameserver 169.254.77.1\n" {
		t.Errorf("resolv.conf %q", got)
	}
	apply(proto.Identity{Hostname: "a-rather-long-name", MachineID: "1234", BootID: "b1"})
	inode := func() uint64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(n.dir, hosts), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	before := inode()
	// A shorter name leaves nothing of the longer one.
	apply(proto.Identity{Hostname: "b", MachineID: "56", BootID: "b2"})
	for name, want := range map[string]string{
		hostname: "b\n", machineID: "56\n", bootID: "b2\n",
		hosts: "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n169.254.77.2\tb\n",
	} {
		if got := regexp.MustCompile(" +\n").ReplaceAllString(read(n, name), "\n"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if inode() != before {
		t.Error("a new file was made: what is mounted is the old one")
	}
	// What an identity does not say stays.
	apply(proto.Identity{BootID: "b3"})
	if got := read(n, hostname) + read(n, bootID); got != "b\nb3\n" {
		t.Errorf("got %q", got)
	}
	// Another process's view.
	other, err := OpenNames(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c", "a-longer-one", "d"} {
		if err := other.write(proto.Identity{Hostname: name}); err != nil {
			t.Fatal(err)
		}
		if got := read(n, hostname); got != name+"\n" {
			t.Errorf("got %q, want %q", got, name+"\n")
		}
	}
	if err := other.write(proto.Identity{MachineID: strings.Repeat("x", 5000)}); !errors.Is(err, unix.EFBIG) {
		t.Errorf("more than a page: %v", err)
	}
}
