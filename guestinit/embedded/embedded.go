// Package embedded carries the guest init program inside the sietch binary, so
// that one file is all a host needs.
//
// The file is put into dist/ by `make` before linking and is not under version
// control; a binary linked without it still works for everything but booting,
// and [Binary] says how to mend that.
package embedded

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

//go:embed all:dist
var dist embed.FS

// ErrMissing reports that this sietch was linked without its guest init.
var ErrMissing = errors.New("this sietch was built without its guest init (hint: build it with make, not go build)")

// Binary returns the static x86-64 ELF of cmd guestinit, decompressed.
func Binary() ([]byte, error) {
	packed, err := dist.ReadFile("dist/guestinit.zst")
	if err != nil {
		return nil, ErrMissing
	}
	r, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack guest init: %w", err)
	}
	defer r.Close()
	elf, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("unpack guest init: %w", err)
	}
	return elf, nil
}
