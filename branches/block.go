package branches

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A block is the unit of compression and of reading: some pages of one size,
// or one blob, behind a header. Several pages to a frame come close to the
// ratio of one long stream; few enough that fetching a single page is cheap.
const (
	blockHeaderBytes = 28
	blockVersion     = 1

	// blockRawBytes is how much page data goes into one block at most.
	blockRawBytes = 128 << 10
	// Limits a decoder trusts; a writer stays far below.
	maxBlockPages = 1 << 12
	maxPageBytes  = 1 << 20
	minPageBytes  = 512
	maxBlockBytes = 1 << 26
	// MaxBlobBytes bounds what WriteBlob takes.
	MaxBlobBytes = 32 << 20
)

type blockKind byte

const (
	pagesBlock blockKind = 1
	blobBlock  blockKind = 2
)

const (
	codecStored = 0
	codecZstd   = 1
)

var blockMagic = [4]byte{'S', 'B', 'L', 'K'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// blockHeader describes the payload behind it.
type blockHeader struct {
	kind    blockKind
	codec   byte
	count   int // pages; 1 for a blob
	unit    int // bytes of one page, or of the blob
	payload int // bytes behind the header
	sum     uint32
}

func (h blockHeader) rawBytes() int { return h.count * h.unit }
func (h blockHeader) length() int   { return blockHeaderBytes + h.payload }

func (h blockHeader) append(b []byte) []byte {
	start := len(b)
	b = append(b, blockMagic[:]...)
	b = append(b, blockVersion, byte(h.kind), h.codec, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.count))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.unit))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.payload))
	b = binary.LittleEndian.AppendUint32(b, h.sum)
	return binary.LittleEndian.AppendUint32(b, checksum(b[start:]))
}

func decodeBlockHeader(b []byte) (blockHeader, error) {
	if len(b) < blockHeaderBytes {
		return blockHeader{}, fmt.Errorf("decode block header: %w", errTruncated)
	}
	b = b[:blockHeaderBytes]
	le := binary.LittleEndian
	if !bytes.Equal(b[:4], blockMagic[:]) {
		return blockHeader{}, errors.New("decode block header: no magic number")
	}
	if le.Uint32(b[24:]) != checksum(b[:24]) {
		return blockHeader{}, errors.New("decode block header: checksum mismatch")
	}
	if b[4] != blockVersion {
		return blockHeader{}, fmt.Errorf("decode block header: %w: version %d, want %d", ErrFormat, b[4], blockVersion)
	}
	h := blockHeader{kind: blockKind(b[5]), codec: b[6], count: int(le.Uint32(b[8:])), unit: int(le.Uint32(b[12:])), payload: int(le.Uint32(b[16:])), sum: le.Uint32(b[20:])}
	if err := h.validate(); err != nil {
		return blockHeader{}, fmt.Errorf("decode block header: %w", err)
	}
	return h, nil
}

func (h blockHeader) validate() error {
	switch h.kind {
	case pagesBlock:
		if h.count < 1 || h.count > maxBlockPages || h.unit < minPageBytes || h.unit > maxPageBytes || h.rawBytes() > maxBlockBytes/2 {
			return fmt.Errorf("%d pages of %d bytes", h.count, h.unit)
		}
	case blobBlock:
		if h.count != 1 || h.unit < 0 || h.unit > MaxBlobBytes {
			return fmt.Errorf("%d blobs of %d bytes", h.count, h.unit)
		}
	default:
		return fmt.Errorf("unknown kind %d", h.kind)
	}
	if h.codec != codecStored && h.codec != codecZstd {
		return fmt.Errorf("unknown codec %d", h.codec)
	}
	if h.payload < 0 || h.length() > maxBlockBytes || h.codec == codecStored && h.payload != h.rawBytes() {
		return fmt.Errorf("payload of %d bytes for %d", h.payload, h.rawBytes())
	}
	return nil
}

// encodeBlock appends header and compressed payload of raw to dst.
func encodeBlock(dst []byte, kind blockKind, unit int, raw []byte, enc *zstd.Encoder) []byte {
	h := blockHeader{kind: kind, codec: codecZstd, count: 1, unit: unit}
	if kind == pagesBlock {
		h.count = len(raw) / unit
	}
	start := len(dst)
	var space [blockHeaderBytes]byte
	dst = append(dst, space[:]...)
	dst = enc.EncodeAll(raw, dst)
	if len(dst)-start-blockHeaderBytes >= len(raw) {
		h.codec = codecStored
		dst = append(dst[:start+blockHeaderBytes], raw...)
	}
	payload := dst[start+blockHeaderBytes:]
	h.payload = len(payload)
	h.sum = checksum(payload)
	h.append(dst[start:start])
	return dst
}

// decodeBlock checks a whole block and returns its header and raw bytes, which
// reuse dst where it is large enough. Anything amiss is an error: a payload is
// never shorter or longer than its header says.
func decodeBlock(dst, block []byte, dec *zstd.Decoder) (blockHeader, []byte, error) {
	h, err := decodeBlockHeader(block)
	if err != nil {
		return h, nil, err
	}
	if len(block) != h.length() {
		return h, nil, fmt.Errorf("decode block: %d bytes, header says %d", len(block), h.length())
	}
	payload := block[blockHeaderBytes:]
	if checksum(payload) != h.sum {
		return h, nil, errors.New("decode block: checksum mismatch")
	}
	if h.codec == codecStored {
		return h, append(dst[:0], payload...), nil
	}
	if cap(dst) < h.rawBytes() {
		dst = make([]byte, 0, h.rawBytes())
	}
	raw, err := dec.DecodeAll(payload, dst[:0])
	if err != nil {
		return h, nil, fmt.Errorf("decode block: %w", err)
	}
	if len(raw) != h.rawBytes() {
		return h, nil, fmt.Errorf("decode block: %d raw bytes, header says %d", len(raw), h.rawBytes())
	}
	return h, raw, nil
}

// newEncoder returns an encoder for one goroutine. Frames carry no checksum of
// their own (the header has one) and know their size.
func newEncoder() *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // constant options
	}
	return enc
}

// newDecoder returns a decoder for one goroutine that refuses to produce more
// than a block may hold.
func newDecoder() *zstd.Decoder {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxBlockBytes))
	if err != nil {
		panic(err) // constant options
	}
	return dec
}

// Encoders and decoders are worth keeping: each has tables of its own.
var (
	encoders = sync.Pool{New: func() any { return newEncoder() }}
	decoders = sync.Pool{New: func() any { return newDecoder() }}
)

func defaultWorkers() int { return max(1, runtime.GOMAXPROCS(0)) }
