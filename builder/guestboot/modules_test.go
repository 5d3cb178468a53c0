package guestboot

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// kernelObject is the smallest file that is a module: an ELF object with a
// .modinfo section.
func kernelObject(info ...string) []byte {
	modinfo := []byte(strings.Join(info, "\x00") + "\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	const header, section = 64, 64
	var b bytes.Buffer
	put := func(v any) { binary.Write(&b, binary.LittleEndian, v) }
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put([]uint16{1, 62}) // relocatable, x86-64
	put(uint32(1))
	put([]uint64{0, 0, uint64(header + len(modinfo) + len(names))}) // entry, segments, sections
	put(uint32(0))
	put([]uint16{header, 0, 0, section, 3, 2})
	b.Write(modinfo)
	b.Write(names)
	b.Write(make([]byte, section))
	for _, s := range []struct{ name, kind, offset, size int }{
		{1, 1, header, len(modinfo)},
		{10, 3, header + len(modinfo), len(names)},
	} {
		put([]uint32{uint32(s.name), uint32(s.kind)})
		put([]uint64{0, 0, uint64(s.offset), uint64(s.size)})
		put([]uint32{0, 0})
		put([]uint64{1, 0})
	}
	return b.Bytes()
}

func signed(ko []byte) []byte {
	signature := []byte("not really a signature")
	b := append(bytes.Clone(ko), signature...)
	b = append(b, make([]byte, 8)...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(signature)))
	return append(b, signatureMark...)
}

func TestParseModule(t *testing.T) {
	got, err := parseModule("virtio_blk", kernelObject("license=GPL", "alias=virtio:d00000002v*", "depends=virtio,virtio-ring", "alias=block"))
	if err != nil {
		t.Fatal(err)
	}
	want := module{name: "virtio_blk", depends: []string{"virtio", "virtio_ring"}, aliases: []string{"virtio:d00000002v*", "block"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(module{})); d != "" {
		t.Error(d)
	}
	for name, b := range map[string][]byte{"empty": nil, "text": []byte("no module"), "cut off": kernelObject("a=b")[:70]} {
		if _, err := parseModule("x", b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReadModule(t *testing.T) {
	want := kernelObject("depends=")
	packed := func(pack func(*bytes.Buffer) interface {
		Write([]byte) (int, error)
		Close() error
	}) []byte {
		var b bytes.Buffer
		w := pack(&b)
		w.Write(signed(want))
		w.Close()
		return b.Bytes()
	}
	type closer = interface {
		Write([]byte) (int, error)
		Close() error
	}
	for name, b := range map[string][]byte{
		"plain":  want,
		"signed": signed(want),
		"gzip":   packed(func(b *bytes.Buffer) closer { return gzip.NewWriter(b) }),
		"zstd":   packed(func(b *bytes.Buffer) closer { w, _ := zstd.NewWriter(b); return w }),
		"xz":     packed(func(b *bytes.Buffer) closer { w, _ := xz.NewWriter(b); return w }),
	} {
		file := filepath.Join(t.TempDir(), "m.ko")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readModule(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
}

func TestWithoutSignatureMalformed(t *testing.T) {
	for name, b := range map[string][]byte{
		"no header": []byte(signatureMark),
		"too long":  append([]byte("short\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff"), signatureMark...),
	} {
		if _, err := withoutSignature(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	mods := map[string]module{
		"virtio_mmio": {name: "virtio_mmio", depends: []string{"virtio", "virtio_ring"}},
		"virtio_blk":  {name: "virtio_blk", depends: []string{"virtio", "virtio_ring"}},
		"virtio":      {name: "virtio", depends: []string{"virtio_ring", "inside_the_kernel"}},
		"virtio_ring": {name: "virtio_ring"},
		"a_first":     {name: "a_first", depends: []string{"virtio_blk"}, aliases: []string{"char-major-1-2", "with space"}},
	}
	order, err := loadOrder(mods)
	if err != nil {
		t.Fatal(err)
	}
	want := `module virtio_ring
module virtio virtio_ring
module virtio_blk virtio virtio_ring
module a_first virtio_blk
alias char-major-1-2
module virtio_mmio virtio virtio_ring
`
	if d := cmp.Diff(want, string(moduleIndex(order))); d != "" {
		t.Error(d)
	}
	got := closure(mods, []string{"virtio_mmio", "absent"})
	if d := cmp.Diff(map[string]bool{"virtio_mmio": true, "virtio": true, "virtio_ring": true}, got); d != "" {
		t.Error(d)
	}

	mods["virtio_ring"] = module{name: "virtio_ring", depends: []string{"a_first"}}
	if _, err := loadOrder(mods); err == nil || !strings.Contains(err.Error(), "circle") {
		t.Errorf("circle: %v", err)
	}
}

func TestReadModulesMissing(t *testing.T) {
	files := make(map[string]string)
	builtin := []string{"ext4", "virtio_mmio", "virtio_pci"} // sorted
	dir := t.TempDir()
	add := func(name string, info ...string) {
		files[name] = filepath.Join(dir, name+".ko")
		if err := os.WriteFile(files[name], kernelObject(info...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add("virtio_blk")
	add("virtio_net", "depends=failover")
	add("virtio_console")
	add("overlay")
	add("tun", "depends=nowhere") // optional, and cannot be had
	add("fuse")
	if _, err := readModules(files, builtin); err == nil || err.Error() != "module virtio_net needs module failover: not in this kernel's package" {
		t.Errorf("missing dependency of a boot module: %v", err)
	}
	add("failover")
	got, err := readModules(files, builtin)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"virtio_blk", "virtio_net", "failover", "virtio_console", "overlay", "fuse"} {
		if got[name] == nil {
			t.Errorf("module %s is missing", name)
		}
	}
	if len(got) != 6 {
		t.Errorf("got %d modules, want 6", len(got))
	}
}
