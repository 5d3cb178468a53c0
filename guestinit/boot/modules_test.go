package boot

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

const testIndex = `module virtio_ring
module virtio virtio_ring
module virtio_blk virtio virtio_ring
alias virtio:d00000002v*
module tun
alias devname:net/tun
alias char-major-10-200
module virtio_pci virtio_ring virtio
alias pci:v00001AF4d*sv*sd*bc*sc*i*
module virtio_mmio virtio virtio_ring
alias acpi*:LNRO0005:*
module broken virtio_ring
`

// fakeKernel notes what it is given.
type fakeKernel struct {
	mu     sync.Mutex
	loaded []string
}

func (k *fakeKernel) insert(ko []byte, _ *os.File) error {
	if string(ko) == "broken" {
		return errors.New("exec format error")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loaded = append(k.loaded, string(ko))
	return nil
}

func testModules(t *testing.T) (*Modules, *fakeKernel) {
	t.Helper()
	files := fstest.MapFS{"index": {Data: []byte(testIndex)}}
	for _, name := range []string{"virtio_ring", "virtio", "virtio_blk", "virtio_pci", "virtio_mmio", "broken"} {
		files[name+".ko"] = &fstest.MapFile{Data: []byte(name)}
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write([]byte("tun"))
	w.Close()
	files["tun.ko.gz"] = &fstest.MapFile{Data: packed.Bytes()}
	m, err := loadIndex(files)
	if err != nil {
		t.Fatal(err)
	}
	k := new(fakeKernel)
	m.insert = k.insert
	return m, k
}

func TestLoadInOrder(t *testing.T) {
	m, k := testModules(t)
	if err := m.loadAll([]string{"virtio_mmio", "virtio_blk", "virtio-blk", "tun"}); err != nil {
		t.Fatal(err)
	}
	place := func(name string) int { return slices.Index(k.loaded, name) }
	if len(k.loaded) != 5 || place("virtio_ring") > place("virtio") || place("virtio") > place("virtio_blk") ||
		place("virtio") > place("virtio_mmio") || place("tun") < 0 {
		t.Errorf("loaded %v", k.loaded)
	}
	if err := m.Load("nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown module: %v", err)
	}
	for range 2 { // the second time too
		if err := m.Load("broken"); err == nil || err.Error() != "load module broken: exec format error" {
			t.Errorf("broken module: %v", err)
		}
	}
}

func TestMatch(t *testing.T) {
	m, _ := testModules(t)
	for name, want := range map[string]string{
		"acpi:LNRO0005:": "virtio_mmio",
		"pci:v00001AF4d00001042sv00001AF4sd00000040bc01sc80i00": "virtio_pci",
		"virtio:d00000002v554D4551":                             "virtio_blk",
		"virtio:d00000001v554D4551":                             "",
		"char-major-10-200":                                     "tun",
		"devname:net/tun":                                       "tun",
		"virtio-blk":                                            "virtio_blk",
		"acpi:PNP0C0C:":                                         "",
		"[":                                                     "",
	} {
		if got := strings.Join(m.Match(name), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestIndexMalformed(t *testing.T) {
	for _, index := range []string{"alias x\n", "module\n", "whatever\n"} {
		if _, err := loadIndex(fstest.MapFS{"index": {Data: []byte(index)}}); err == nil {
			t.Errorf("%q: no error", index)
		}
	}
	if _, err := loadIndex(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no index: %v", err)
	}
}
