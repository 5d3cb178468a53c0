package boot

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFindDisks(t *testing.T) {
	for _, c := range []struct {
		name    string
		serials map[string]string // of each disk; "-" is no serial file
		want    disks
		says    string
	}{
		{"by serial, in the other order", map[string]string{"vda": "layer\n", "vdb": "image\n"}, disks{"vdb", "vda"}, ""},
		{"by serial among others", map[string]string{"vda": "data", "vdb": "image", "vdc": "layer"}, disks{"vdb", "vdc"}, ""},
		{"by order", map[string]string{"vda": "", "vdb": "-"}, disks{"vda", "vdb"}, ""},
		{"not virtio", map[string]string{"sda": "image", "loop0": "layer"}, disks{}, "no disk found"},
		{"one", map[string]string{"vda": ""}, disks{}, "no image disk among"},
		{"no layer", map[string]string{"vda": "image", "vdb": "data"}, disks{}, "no layer disk among"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sys, dev := t.TempDir(), t.TempDir()
			for name, serial := range c.serials {
				write(t, filepath.Join(sys, name, "size"), "1")
				if serial != "-" {
					write(t, filepath.Join(sys, name, "serial"), serial)
				}
				write(t, filepath.Join(dev, name), "")
			}
			got, err := findDisks(sys, dev, 0)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %v, %v; want %q", got, err, c.says)
				}
				return
			}
			want := disks{filepath.Join(dev, c.want.image), filepath.Join(dev, c.want.layer)}
			if err != nil || got != want {
				t.Errorf("got %v, %v; want %v", got, err, want)
			}
		})
	}
}

func TestPrepareLayer(t *testing.T) {
	image, layer := t.TempDir(), t.TempDir()
	if err := os.Chmod(image, 0o711); err != nil {
		t.Fatal(err)
	}
	mode := func(name string) os.FileMode {
		t.Helper()
		fi, err := os.Stat(filepath.Join(layer, name))
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode().Perm()
	}
	if err := prepareLayer(image, layer); err != nil {
		t.Fatal(err)
	}
	if got := mode("upper"); got != 0o711 {
		t.Errorf("upper has mode %o, want the image's", got)
	}
	if got := mode("work"); got != 0o700 {
		t.Errorf("work has mode %o", got)
	}
	// What a used layer says about / stays.
	if err := os.Chmod(filepath.Join(layer, "upper"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := prepareLayer(image, layer); err != nil || mode("upper") != 0o750 {
		t.Errorf("second time: %v, mode %o", err, mode("upper"))
	}
}

func TestMakeMountPoint(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "x")
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "there"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link", "there", "missing/below"} {
		if err := makeMountPoint(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || !fi.IsDir() {
			t.Errorf("%s is no directory (%v)", name, err)
		}
	}
}

func TestFindCard(t *testing.T) {
	dir := t.TempDir()
	if name, _, err := findCard(dir); name != "" || err != nil {
		t.Errorf("no card: got %q, %v", name, err)
	}
	write(t, filepath.Join(dir, "lo/address"), "00:00:00:00:00:00\n")
	write(t, filepath.Join(dir, "dummy0/address"), "aa:bb:cc:dd:ee:ff\n")
	write(t, filepath.Join(dir, "dummy0/ifindex"), "2\n")
	if name, index, err := findCard(dir); name != "dummy0" || index != 2 || err != nil {
		t.Errorf("any card: got %q, %d, %v", name, index, err)
	}
	write(t, filepath.Join(dir, "eth7/address"), "02:73:69:65:74:63\n")
	write(t, filepath.Join(dir, "eth7/ifindex"), "11\n")
	if name, index, err := findCard(dir); name != "eth7" || index != 11 || err != nil {
		t.Errorf("ours: got %q, %d, %v", name, index, err)
	}
}

// The kernel says EINVAL to what is malformed. What is not must fail for want of
// the interface, or of a way to the gateway, and for no other reason.
func TestNetlinkRequests(t *testing.T) {
	nl, err := dialRoute()
	if err != nil {
		t.Skipf("no netlink here: %v", err)
	}
	defer nl.Close()
	const nowhere = 1 << 30
	addr := netip.MustParseAddr("169.254.77.2")
	want := []error{unix.ENODEV, unix.ENETUNREACH}
	if os.Geteuid() != 0 {
		want = []error{unix.EPERM}
	}
	for what, err := range map[string]error{
		"link":      nl.up(nowhere),
		"address":   nl.addAddress(nowhere, netip.PrefixFrom(addr, 30)),
		"neighbour": nl.addNeighbour(nowhere, addr, []byte{2, 0, 0, 0, 0, 1}),
		"route":     nl.addDefaultRoute(nowhere, addr),
	} {
		if !slices.Contains(want, err) {
			t.Errorf("%s: got %v, want one of %v", what, err, want)
		}
	}
}

func TestAttributesAreAligned(t *testing.T) {
	m := newMessage(unix.RTM_NEWADDR, 0)
	m.attr(1, []byte("abcde"))
	m.attr(2, nil)
	if len(m.b) != unix.SizeofNlMsghdr+12+4 {
		t.Errorf("%d bytes", len(m.b))
	}
	if got := binary.NativeEndian.Uint16(m.b[unix.SizeofNlMsghdr:]); got != 9 {
		t.Errorf("length %d, want 9: it does not count the padding", got)
	}
}
