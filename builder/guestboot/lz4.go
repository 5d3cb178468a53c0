package guestboot

import (
	"encoding/binary"
	"errors"
)

// lz4LegacyMagic starts the LZ4 format kernels are packed with ("legacy frame"
// of the LZ4 frame format): blocks of at most 8 MiB, each after its packed
// length in little endian.
const lz4LegacyMagic = "\x02\x21\x4c\x18"

var errLZ4 = errors.New("malformed LZ4 data")

// unpackLZ4 unpacks a legacy frame; size is what is expected to come out and is
// not exceeded.
func unpackLZ4(b []byte, size int) ([]byte, error) {
	b = b[len(lz4LegacyMagic):]
	out := make([]byte, 0, size)
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, errLZ4
		}
		n := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return nil, errLZ4
		}
		var err error
		if out, err = appendLZ4Block(out, b[:n]); err != nil {
			return nil, err
		}
		b = b[n:]
	}
	return out, nil
}

// appendLZ4Block appends what block unpacks to, within out's capacity. Matches
// reach back within the block only.
func appendLZ4Block(out, block []byte) ([]byte, error) {
	start := len(out)
	for i := 0; i < len(block); {
		token := block[i]
		i++
		literals, n := lz4Length(int(token>>4), block[i:])
		i += n
		if n < 0 || literals > len(block)-i || literals > cap(out)-len(out) {
			return nil, errLZ4
		}
		out = append(out, block[i:i+literals]...)
		i += literals
		if i == len(block) {
			return out, nil // the last sequence has no match
		}
		if len(block)-i < 2 {
			return nil, errLZ4
		}
		distance := int(binary.LittleEndian.Uint16(block[i:]))
		i += 2
		length, n := lz4Length(int(token&15), block[i:])
		i += n
		length += 4
		if n < 0 || distance == 0 || distance > len(out)-start || length > cap(out)-len(out) {
			return nil, errLZ4
		}
		for length > 0 { // source and destination may overlap: that repeats a pattern
			from := len(out) - distance
			n := min(length, distance)
			out = append(out, out[from:from+n]...)
			length -= n
		}
	}
	return out, nil
}

// lz4Length completes a length of four bits; n is how many bytes it took, -1
// when they end too early.
func lz4Length(length int, b []byte) (_, n int) {
	if length < 15 {
		return length, 0
	}
	for {
		if n == len(b) {
			return 0, -1
		}
		c := b[n]
		length += int(c)
		n++
		if c != 255 {
			return length, n
		}
	}
}
