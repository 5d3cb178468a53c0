// Command pack compresses the guest init program for embedding: pack IN OUT.
//
// It is here so that a build needs no zstd on the host, and so that the same
// input gives the same bytes everywhere.
package main

import (
	"fmt"
	"os"

	"github.com/google/renameio/v2"
	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack IN OUT")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(in, out string) error {
	elf, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	// One goroutine: the encoder's block boundaries then do not depend on the host.
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("set up zstd: %w", err)
	}
	defer w.Close()
	return renameio.WriteFile(out, w.EncodeAll(elf, nil), 0o644)
}
