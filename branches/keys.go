package branches

import (
	"encoding/binary"
	"fmt"
)

// The index is one flat key space. The first byte of a key is its table.
const (
	tableChunk     = 'c' // page hash → location in a pack
	tableBlob      = 'b' // blob hash → location in a pack
	tableNode      = 'n' // node hash → encoding; everything below it is present
	tableBase      = 'e' // node hash → encoding that only serves as a delta's base
	tableCommit    = 'k' // commit id → sort date, encoding
	tableRef       = 'r' // ref name → commit id
	tableHead      = 'h' // sandbox id → HEAD
	tableReflog    = 'l' // sandbox id, NUL, sequence number → entry
	tablePack      = 'p' // pack id → durable length
	tableMeta      = 'm' // "format" → number of the store's format
	tableDiscarded = 'z' // scratch of compaction, never read
)

// Every value starts with the version of its encoding.
const valueVersion = 1

func hashKey(table byte, h Hash) []byte {
	k := make([]byte, 1+HashBytes)
	k[0] = table
	copy(k[1:], h[:])
	return k
}

// keyHash reads the hash out of a key made by hashKey.
func keyHash(k []byte) (Hash, error) {
	if len(k) != 1+HashBytes {
		return Hash{}, fmt.Errorf("key %q: %d bytes, want %d", k, len(k), 1+HashBytes)
	}
	return Hash(k[1:]), nil
}

var formatKey = append([]byte{tableMeta}, "format"...)

func refKey(n RefName) []byte { return append([]byte{tableRef}, n...) }

func headKey(sandbox string) []byte { return append([]byte{tableHead}, sandbox...) }

func reflogPrefix(sandbox string) []byte {
	return append(append([]byte{tableReflog}, sandbox...), 0)
}

func reflogKey(sandbox string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(reflogPrefix(sandbox), seq)
}

func packKey(id uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tablePack}, id)
}

// location says where a chunk or blob lies: in which block of which pack, and
// for a chunk at which place in the block.
type location struct {
	pack   uint64
	offset int64 // of the block's header
	length int   // header and payload
	slot   int   // place in the block; 0 for a blob
}

func (l location) encode() []byte {
	b := make([]byte, 0, 24)
	b = append(b, valueVersion)
	b = binary.AppendUvarint(b, l.pack)
	b = binary.AppendUvarint(b, uint64(l.offset))
	b = binary.AppendUvarint(b, uint64(l.length))
	return binary.AppendUvarint(b, uint64(l.slot))
}

// position is when it was written, by the clock of packs.position.
func (l location) position() int64 { return int64(l.pack)*packBytes + l.offset }

func decodeLocation(b []byte) (location, error) {
	r := reader{b: b}
	r.version(valueVersion)
	l := location{pack: r.uvarint(1 << 62), offset: int64(r.uvarint(1 << 62)), length: int(r.uvarint(maxBlockBytes)), slot: int(r.uvarint(maxBlockPages - 1))}
	return l, r.end("location")
}

// A pack's record is how many of its bytes were durable when the index was
// last told; whatever lies behind them was written by a crash.
func encodePackRecord(bytes int64) []byte {
	return binary.AppendUvarint([]byte{valueVersion}, uint64(bytes))
}

func decodePackRecord(b []byte) (int64, error) {
	r := reader{b: b}
	r.version(valueVersion)
	n := int64(r.uvarint(1 << 62))
	return n, r.end("pack record")
}

func packKeyID(k []byte) uint64 { return binary.BigEndian.Uint64(k[1:]) }
