package ext4

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"strings"
)

// attr is an extended attribute as it is stored.
type attr struct {
	index byte
	name  string // without the prefix that index stands for
	value []byte
}

// attributes stores the extended attributes of a node in its inode if all of
// them fit, else in a block of their own.
func (w *writer) attributes(n *node, raw []byte) error {
	if len(n.xattrs) == 0 {
		return nil
	}
	list, err := sortedAttrs(n.xattrs)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	body := raw[128+extraInodeBytes:]
	if packAttrs(list, body[4:], 0) {
		le.PutUint32(body, xattrMagic)
		return nil
	}
	block := make([]byte, blockSize)
	if !packAttrs(list, block[32:], 32) {
		return fmt.Errorf("%w: its extended attributes do not fit into a block of %d bytes", ErrUnsupported, blockSize)
	}
	at := w.alloc(1)
	n.blocks++
	le.PutUint32(block[0:], xattrMagic)
	le.PutUint32(block[4:], 1) // references
	le.PutUint32(block[8:], 1) // blocks
	hash := uint32(0)
	for _, a := range list {
		hash = hash<<16 ^ hash>>16 ^ a.hash()
	}
	le.PutUint32(block[12:], hash)
	number := le.AppendUint64(nil, at)
	le.PutUint32(block[16:], crc32c(crc32c(w.seed, number), block))
	le.PutUint32(raw[0x68:], uint32(at))
	le.PutUint16(raw[0x76:], uint16(at>>32))
	return w.writeBlocks(at, block)
}

// sortedAttrs is the order the kernel searches in.
func sortedAttrs(m map[string]string) ([]attr, error) {
	var out []attr
	for full, value := range m {
		a, err := newAttr(full, value)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.index != b.index {
			return a.index < b.index
		}
		if len(a.name) != len(b.name) {
			return len(a.name) < len(b.name)
		}
		return a.name < b.name
	})
	return out, nil
}

func newAttr(full, value string) (attr, error) {
	switch full {
	case xattrPrefix[2], xattrPrefix[3]:
		index := byte(2)
		if full == xattrPrefix[3] {
			index = 3
		}
		disk, err := aclToDisk([]byte(value))
		return attr{index: index, value: disk}, err
	}
	for _, index := range []byte{1, 4, 6, 7} {
		if name, ok := strings.CutPrefix(full, xattrPrefix[index]); ok && len(name) < 256 {
			return attr{index, name, []byte(value)}, nil
		}
	}
	return attr{}, fmt.Errorf("%w: attribute %s", ErrUnsupported, full)
}

// hash is what the kernel compares blocks by and e2fsck checks.
func (a attr) hash() uint32 {
	h := uint32(0)
	for k := range len(a.name) {
		h = h<<5 ^ h>>27 ^ uint32(a.name[k])
	}
	padded := append(bytes.Clone(a.value), make([]byte, (4-len(a.value)%4)%4)...)
	for ; len(padded) > 0; padded = padded[4:] {
		h = h<<16 ^ h>>16 ^ binary.LittleEndian.Uint32(padded)
	}
	return h
}

// packAttrs writes entries from the front of area and values from its end, and
// reports whether they fit. Offsets of values count from base bytes before area.
func packAttrs(list []attr, area []byte, base int) bool {
	le := binary.LittleEndian
	front, back := 0, len(area)
	for _, a := range list {
		entry, value := (16+len(a.name)+3)&^3, (len(a.value)+3)&^3
		if front+entry+4 > back-value { // four zero bytes end the entries
			clear(area)
			return false
		}
		e := area[front:]
		e[0], e[1] = byte(len(a.name)), a.index
		if value > 0 {
			back -= value
			copy(area[back:], a.value)
			le.PutUint16(e[2:], uint16(base+back))
		}
		le.PutUint32(e[8:], uint32(len(a.value)))
		le.PutUint32(e[12:], a.hash())
		copy(e[16:], a.name)
		front += entry
	}
	return true
}

// aclToDisk is the inverse of aclFromDisk.
func aclToDisk(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(b) < 4 || le.Uint32(b) != 2 || (len(b)-4)%8 != 0 {
		return nil, fmt.Errorf("%w: access control list", ErrUnsupported)
	}
	out := le.AppendUint32(nil, 1)
	for b = b[4:]; len(b) > 0; b = b[8:] {
		out = append(out, b[:4]...)
		if tag := le.Uint16(b); tag == 0x02 || tag == 0x08 {
			out = append(out, b[4:8]...)
		}
	}
	return out, nil
}
