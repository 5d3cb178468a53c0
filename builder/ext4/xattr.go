package ext4

import (
	"encoding/binary"
	"fmt"
)

const xattrMagic = 0xEA020000

// Prefixes of attribute names by their index.
var xattrPrefix = map[byte]string{
	1: "user.",
	2: "system.posix_acl_access",
	3: "system.posix_acl_default",
	4: "trusted.",
	6: "security.",
	7: "system.",
}

// Xattrs returns the extended attributes of an inode as getxattr(2) would.
func (fs *FS) Xattrs(i *Inode) (map[string][]byte, error) {
	le := binary.LittleEndian
	out := map[string][]byte{}
	if len(i.raw) > offExtraSize+2 {
		body := 128 + int(le.Uint16(i.raw[offExtraSize:]))
		if body+4 <= len(i.raw) && le.Uint32(i.raw[body:]) == xattrMagic {
			area := i.raw[body+4:]
			if err := addXattrs(out, area, area); err != nil {
				return nil, fmt.Errorf("inode %d: %w", i.Number, err)
			}
		}
	}
	acl := uint64(le.Uint32(i.raw[0x68:])) | uint64(le.Uint16(i.raw[0x76:]))<<32
	if acl == 0 {
		return out, nil
	}
	block, err := fs.readBlock(acl)
	if err != nil {
		return nil, err
	}
	if le.Uint32(block) != xattrMagic {
		return nil, fmt.Errorf("%w: attribute block of inode %d", ErrCorrupt, i.Number)
	}
	if err := addXattrs(out, block[32:], block); err != nil {
		return nil, fmt.Errorf("inode %d: %w", i.Number, err)
	}
	return out, nil
}

// addXattrs reads the list of entries; offsets of values count from values.
func addXattrs(out map[string][]byte, entries, values []byte) error {
	le := binary.LittleEndian
	for len(entries) >= 4 && le.Uint32(entries) != 0 {
		if len(entries) < 16 {
			return fmt.Errorf("%w: attribute entry", ErrCorrupt)
		}
		nameLen, index := int(entries[0]), entries[1]
		off, size := int(le.Uint16(entries[2:])), int64(le.Uint32(entries[8:]))
		if le.Uint32(entries[4:]) != 0 {
			return fmt.Errorf("%w: attribute value in an inode of its own", ErrUnsupported)
		}
		if 16+nameLen > len(entries) || int64(off)+size > int64(len(values)) {
			return fmt.Errorf("%w: attribute entry", ErrCorrupt)
		}
		prefix, ok := xattrPrefix[index]
		if !ok {
			return fmt.Errorf("%w: attribute name space %d", ErrUnsupported, index)
		}
		value := append([]byte{}, values[off:off+int(size)]...)
		if index == 2 || index == 3 {
			var err error
			if value, err = aclFromDisk(value); err != nil {
				return err
			}
		}
		out[prefix+string(entries[16:16+nameLen])] = value
		entries = entries[min((16+nameLen+3)&^3, len(entries)):]
	}
	return nil
}

// aclFromDisk turns the compact form of an access control list into the one
// user space sees.
func aclFromDisk(b []byte) ([]byte, error) {
	const (
		diskVersion, userVersion = 1, 2
		tagUser, tagGroup        = 0x02, 0x08
	)
	le := binary.LittleEndian
	if len(b) < 4 || le.Uint32(b) != diskVersion {
		return nil, fmt.Errorf("%w: access control list", ErrCorrupt)
	}
	out := le.AppendUint32(nil, userVersion)
	for b = b[4:]; len(b) > 0; {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: access control list", ErrCorrupt)
		}
		tag, id := le.Uint16(b), ^uint32(0)
		out = append(out, b[:4]...)
		b = b[4:]
		if tag == tagUser || tag == tagGroup {
			if len(b) < 4 {
				return nil, fmt.Errorf("%w: access control list", ErrCorrupt)
			}
			id = le.Uint32(b)
			b = b[4:]
		}
		out = le.AppendUint32(out, id)
	}
	return out, nil
}
