package guestboot

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// kernelFile is an ELF executable with one note segment.
func kernelFile(noteName string, noteType uint32) []byte {
	var note bytes.Buffer
	put := func(b *bytes.Buffer, v any) { binary.Write(b, binary.LittleEndian, v) }
	put(&note, []uint32{4, 3, 1})
	note.WriteString("GNU\x00\x01\x02\x03\x00")
	put(&note, []uint32{uint32(len(noteName) + 1), 8, noteType})
	note.WriteString(noteName + "\x00")
	note.Write(make([]byte, -(len(noteName)+1)&3+8))
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put(&b, []uint16{2, 62})
	put(&b, uint32(1))
	put(&b, []uint64{0x1000000, 64, 0})
	put(&b, uint32(0))
	put(&b, []uint16{64, 56, 1, 64, 0, 0})
	put(&b, []uint32{4, 4}) // PT_NOTE, readable
	put(&b, []uint64{120, 0, 0, uint64(note.Len()), uint64(note.Len()), 4})
	b.Write(note.Bytes())
	return b.Bytes()
}

// bootImage wraps a payload as the kernel's build does.
func bootImage(payload []byte) []byte {
	const sectors, offset = 3, 64
	b := make([]byte, (sectors+1)*512+offset, 8192)
	b[0x1f1] = sectors
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], offset)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(append(b, payload...), "what follows"...)
}

func sized(stream []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(stream, uint32(size))
}

// lz4Stored packs without packing: literals only.
func lz4Stored(b []byte) []byte {
	var block []byte
	n := len(b)
	if n < 15 {
		block = append(block, byte(n<<4))
	} else {
		block = append(block, 15<<4)
		for n -= 15; n >= 255; n -= 255 {
			block = append(block, 255)
		}
		block = append(block, byte(n))
	}
	block = append(block, b...)
	return append(binary.LittleEndian.AppendUint32([]byte(lz4LegacyMagic), uint32(len(block))), block...)
}

func TestBootable(t *testing.T) {
	kernel := kernelFile("Xen", 18)
	var gz, zs bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(kernel)
	w.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(kernel)
	z.Close()

	for name, image := range map[string][]byte{
		"gzip":   bootImage(gz.Bytes()), // whose own end is the size
		"zstd":   bootImage(sized(zs.Bytes(), len(kernel))),
		"lz4":    bootImage(sized(lz4Stored(kernel), len(kernel))),
		"an ELF": kernel,
	} {
		got, err := bootable(image)
		if err != nil || !bytes.Equal(got, kernel) {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
	}

	plain := kernelFile("Linux", 18)
	for name, image := range map[string][]byte{
		"no PVH entry":        bootImage(sized(lz4Stored(plain), len(plain))),
		"another compression": bootImage([]byte("\xfd7zXZ\x00 and so on")),
	} {
		got, err := bootable(image)
		if err != nil || !bytes.Equal(got, image) {
			t.Errorf("%s: got %d bytes, %v; want the image as it is", name, len(got), err)
		}
	}

	for name, image := range map[string][]byte{
		"empty":      nil,
		"no header":  make([]byte, 4096),
		"truncated":  bootImage(sized(lz4Stored(kernel), len(kernel)))[:2200],
		"wrong size": bootImage(sized(lz4Stored(kernel), len(kernel)+1)),
		"no kernel":  bootImage(sized(lz4Stored([]byte("text")), 4)),
	} {
		if _, err := bootable(image); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestUnpackLZ4(t *testing.T) {
	// One literal, a match that overlaps itself, and two last literals.
	block := []byte{1<<4 | 15, 'a', 1, 0, 255, 0, 2 << 4, 'b', 'c'}
	want := append(bytes.Repeat([]byte("a"), 1+4+15+255), "bc"...)
	got, err := appendLZ4Block(make([]byte, 0, len(want)), block)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for name, b := range map[string][]byte{
		"too much":           block,
		"before the start":   {1 << 4, 'a', 2, 0, 0},
		"no distance":        {1 << 4, 'a', 0, 0, 0},
		"truncated literals": {2 << 4, 'a'},
		"truncated length":   {15 << 4, 255},
		"truncated match":    {1 << 4, 'a', 1},
	} {
		if _, err := appendLZ4Block(make([]byte, 0, 16), b); !errors.Is(err, errLZ4) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzBootable(f *testing.F) {
	kernel := kernelFile("Xen", 18)
	f.Add(bootImage(sized(lz4Stored(kernel), len(kernel))))
	f.Add(kernel)
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := bootable(b); err == nil && len(got) == 0 && len(b) > 0 {
			t.Error("nothing, and no error")
		}
	})
}

func FuzzModule(f *testing.F) {
	f.Add(signed(kernelObject("depends=a,b", "alias=c")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ko, err := withoutSignature(b); err == nil {
			_, _ = parseModule("m", ko)
		}
	})
}
