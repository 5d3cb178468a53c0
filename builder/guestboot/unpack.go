package guestboot

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// sizeLimit bounds what a compressed kernel or module may become.
const sizeLimit = 512 << 20

// readModule returns a module as the guest's kernel is to load it: unpacked,
// because emulated guests are slow at that; without its signature, whose check
// takes an emulated guest longer than loading the module does (the archive it
// comes in is as trusted as the kernel itself).
func readModule(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if b, err = unpack(b); err != nil {
		return nil, err
	}
	return withoutSignature(b)
}

// unpack undoes the compressions distributions use for modules; anything else
// is returned as it is.
func unpack(b []byte) ([]byte, error) {
	var r io.Reader
	var err error
	switch {
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		r, err = xz.NewReader(bytes.NewReader(b))
	case bytes.HasPrefix(b, []byte("\x1f\x8b")):
		r, err = gzip.NewReader(bytes.NewReader(b))
	case bytes.HasPrefix(b, []byte("\x28\xb5\x2f\xfd")):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
			r = z
		}
	default:
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, sizeLimit))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return out, nil
}

// A signed module ends with the signature, struct module_signature (12 bytes,
// the last 4 the signature's length, big endian) and this line.
const signatureMark = "~Module signature appended~\n"

func withoutSignature(ko []byte) ([]byte, error) {
	body, signed := bytes.CutSuffix(ko, []byte(signatureMark))
	if !signed {
		return ko, nil
	}
	const header = 12
	if len(body) < header {
		return nil, errors.New("truncated module signature")
	}
	n := int(binary.BigEndian.Uint32(body[len(body)-4:]))
	if n > len(body)-header {
		return nil, errors.New("malformed module signature")
	}
	return body[:len(body)-header-n], nil
}
