package guestboot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
)

// bootable turns a distribution's boot image into what is handed to the VMM.
//
// A bzImage carries the kernel compressed, and unpacking it is the guest's
// first act: most of a second under emulation. Where the kernel inside has the
// PVH entry point (a note of name Xen), it is unpacked here once and for all;
// VMMs load such an ELF file directly and share its pages among machines.
// Otherwise the image stays as it is.
func bootable(image []byte) ([]byte, error) {
	if bytes.HasPrefix(image, []byte(elf.ELFMAG)) {
		return image, nil
	}
	payload, err := payloadOf(image)
	if err != nil {
		return nil, err
	}
	kernel, err := unpackKernel(payload)
	if errors.Is(err, errCompression) {
		return image, nil
	}
	if err != nil {
		return nil, err
	}
	if ok, err := hasPVHEntry(kernel); err != nil || !ok {
		return image, err
	}
	return kernel, nil
}

// payloadOf finds the compressed kernel in a bzImage by its setup header
// (Documentation/arch/x86/boot.rst of the kernel, protocol 2.08 and later).
func payloadOf(image []byte) ([]byte, error) {
	const (
		setupSects    = 0x1f1
		magicAt       = 0x202
		version       = 0x206
		payloadOffset = 0x248
		headerEnd     = 0x250
	)
	if len(image) < headerEnd || string(image[magicAt:magicAt+4]) != "HdrS" {
		return nil, errors.New("not an x86 boot image")
	}
	if v := binary.LittleEndian.Uint16(image[version:]); v < 0x208 {
		return nil, fmt.Errorf("boot protocol %d.%02d is too old", v>>8, v&0xff)
	}
	sectors := int(image[setupSects])
	if sectors == 0 {
		sectors = 4
	}
	start := uint64(sectors+1)*512 + uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	length := uint64(binary.LittleEndian.Uint32(image[payloadOffset+4:]))
	if start+length > uint64(len(image)) {
		return nil, errors.New("truncated boot image")
	}
	return image[start : start+length], nil
}

var errCompression = errors.New("unknown compression")

// unpackKernel undoes the compressions kernels are built with, where that can
// be done here: the xz of kernels comes with a filter that our decoder lacks.
func unpackKernel(payload []byte) ([]byte, error) {
	// The unpacked size follows the stream.
	if len(payload) < 8 {
		return nil, errors.New("truncated boot image")
	}
	size := binary.LittleEndian.Uint32(payload[len(payload)-4:])
	stream := payload[:len(payload)-4]
	var out []byte
	var err error
	switch {
	case bytes.HasPrefix(payload, []byte(lz4LegacyMagic)):
		out, err = unpackLZ4(stream, int(min(size, sizeLimit)))
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		out, err = unpack(stream)
	case bytes.HasPrefix(payload, []byte("\x1f\x8b")):
		out, err = unpack(payload) // gzip's own trailer ends with the size
	default:
		return nil, errCompression
	}
	if err != nil {
		return nil, err
	}
	if uint64(len(out)) != uint64(size) {
		return nil, fmt.Errorf("kernel is %d bytes, boot image says %d", len(out), size)
	}
	return out, nil
}

// hasPVHEntry reports whether the kernel can be started at XEN_ELFNOTE_PHYS32_ENTRY.
func hasPVHEntry(kernel []byte) (bool, error) {
	const physEntry = 18
	f, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil {
		return false, fmt.Errorf("read kernel: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > sizeLimit {
			continue
		}
		notes := make([]byte, p.Filesz)
		if _, err := p.ReadAt(notes, 0); err != nil {
			return false, fmt.Errorf("read notes of kernel: %w", err)
		}
		for len(notes) >= 12 {
			name, desc, kind := f.ByteOrder.Uint32(notes), f.ByteOrder.Uint32(notes[4:]), f.ByteOrder.Uint32(notes[8:])
			end := 12 + (uint64(name)+3)&^3 + (uint64(desc)+3)&^3
			if end > uint64(len(notes)) {
				break
			}
			if kind == physEntry && name >= 4 && string(notes[12:16]) == "Xen\x00" {
				return true, nil
			}
			notes = notes[end:]
		}
	}
	return false, nil
}
