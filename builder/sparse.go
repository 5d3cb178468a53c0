package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	digestPiece = 4 << 20  // hashed by one goroutine
	digestBlock = 64 << 10 // zero blocks are left out
)

// digestSparse hashes the content of a file so that the time follows the data
// in it, not its size, and the result does not depend on which zeroes are
// holes. It is SHA-256 over "sietch-rootfs-v1\n", the size as 64 bits and, for
// every 4 MiB piece that is not all zero, its number as 64 bits and a hash of
// it; that hash is SHA-256 over the number within the piece and the content of
// every 64 KiB block that is not all zero. Numbers are big-endian.
func digestSparse(ctx context.Context, f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	size := st.Size()
	pieces, err := dataPieces(f, size)
	if err != nil {
		return "", err
	}
	sums := make([][]byte, len(pieces)) // nil: all zero
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for k, piece := range pieces {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			var err error
			sums[k], err = digestOnePiece(f, piece*digestPiece, size)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", fmt.Errorf("hash image: %w", err)
	}
	h := sha256.New()
	h.Write([]byte("sietch-rootfs-v1\n"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(size)))
	for k, sum := range sums {
		if sum != nil {
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(pieces[k])))
			h.Write(sum)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// dataPieces lists the numbers of the pieces that are not one hole.
func dataPieces(f *os.File, size int64) ([]int64, error) {
	var out []int64
	next := int64(0) // first piece not listed yet
	err := eachData(f, size, func(first, end int64) {
		for p := max(next, first/digestPiece); p*digestPiece < end; p++ {
			out = append(out, p)
			next = p + 1
		}
	})
	return out, err
}

// eachData calls fn for every range of a file that is not a hole.
func eachData(f *os.File, size int64, fn func(first, end int64)) error {
	fd := int(f.Fd())
	for off := int64(0); off < size; {
		first, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if errors.Is(err, unix.EINVAL) { // a file system without the notion
			fn(off, size)
			return nil
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		end, err := unix.Seek(fd, first, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		fn(first, min(end, size))
		off = end
	}
	return nil
}

var zeroBlock [digestBlock]byte

func digestOnePiece(f io.ReaderAt, off, size int64) ([]byte, error) {
	buf := make([]byte, min(digestPiece, size-off))
	if _, err := io.ReadFull(io.NewSectionReader(f, off, int64(len(buf))), buf); err != nil {
		return nil, err
	}
	h := sha256.New()
	any := false
	for k := 0; k < len(buf); k += digestBlock {
		block := buf[k:min(k+digestBlock, len(buf))]
		if bytes.Equal(block, zeroBlock[:len(block)]) {
			continue
		}
		any = true
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(k/digestBlock)))
		h.Write(block)
	}
	if !any {
		return nil, nil
	}
	return h.Sum(nil), nil
}
