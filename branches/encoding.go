package branches

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// Records that are not hot are CBOR in its core deterministic form (RFC 8949,
// 4.2.1), with small integers for field names: one value has one encoding, so
// the hash of a commit's encoding can be its identity.
var (
	cborEnc = must(encOptions().EncMode())
	cborDec = must(cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxNestedLevels:   8,
		MaxArrayElements:  1 << 16,
		MaxMapPairs:       1 << 10,
	}.DecMode())
)

func encOptions() cbor.EncOptions {
	o := cbor.CoreDetEncOptions()
	o.NilContainers = cbor.NilContainerAsEmpty // no hash is an empty byte string
	return o
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // constant options
	}
	return v
}

// commitV1 is the encoding of a commit. Fields are never renumbered; a new one
// gets a new number and is left out when it is zero, so that commits made
// before it keep their ids.
type commitV1 struct {
	Version   uint64            `cbor:"0,keyasint"`
	Kind      uint64            `cbor:"1,keyasint"` // 1 full, 2 disk
	Parents   [][]byte          `cbor:"2,keyasint,omitempty"`
	Created   int64             `cbor:"3,keyasint"` // nanoseconds since 1970
	Author    string            `cbor:"4,keyasint,omitempty"`
	Message   string            `cbor:"5,keyasint,omitempty"`
	Labels    map[string]string `cbor:"6,keyasint,omitempty"`
	Branch    string            `cbor:"7,keyasint,omitempty"`
	Sandbox   string            `cbor:"8,keyasint,omitempty"`
	SandboxID string            `cbor:"9,keyasint,omitempty"`
	Image     imageV1           `cbor:"10,keyasint"`
	Machine   []byte            `cbor:"11,keyasint,omitempty"`
	Memory    *mapV1            `cbor:"12,keyasint,omitempty"`
	Devices   []byte            `cbor:"13,keyasint,omitempty"`
	Disk      *mapV1            `cbor:"14,keyasint,omitempty"`
	Stats     statsV1           `cbor:"15,keyasint"`
}

type imageV1 struct {
	_      struct{} `cbor:",toarray"`
	ID     string
	Name   string
	Rootfs string
}

type mapV1 struct {
	_         struct{} `cbor:",toarray"`
	Root      []byte   // empty: all zero
	SizeBytes int64
	PageBytes uint32
}

type statsV1 struct {
	_              struct{} `cbor:",toarray"`
	MemoryResident int64
	MemoryChanged  int64
	MemoryStored   int64
	DiskChanged    int64
	DiskStored     int64
}

const commitVersion = 1

func encodeCommit(c *Commit) ([]byte, error) {
	e := commitV1{
		Version: commitVersion, Kind: 1,
		Created: c.Created.UnixNano(), Author: c.Author, Message: c.Message, Labels: c.Labels,
		Branch: c.Branch, Sandbox: c.Sandbox, SandboxID: c.SandboxID,
		Image:   imageV1{ID: c.Image.ID, Name: c.Image.Name, Rootfs: c.Image.RootfsDigest},
		Machine: c.Machine, Memory: encodeMap(c.Memory), Devices: encodeHash(c.Devices),
		Stats: statsV1{MemoryResident: c.Stats.MemoryResidentBytes, MemoryChanged: c.Stats.MemoryChangedBytes, MemoryStored: c.Stats.MemoryStoredBytes,
			DiskChanged: c.Stats.DiskChangedBytes, DiskStored: c.Stats.DiskStoredBytes},
	}
	if c.Kind == KindDisk {
		e.Kind = 2
	}
	if c.Disk != (Map{}) {
		e.Disk = encodeMap(&c.Disk)
	}
	for _, p := range c.Parents {
		e.Parents = append(e.Parents, p[:])
	}
	b, err := cborEnc.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode commit: %w", err)
	}
	return b, nil
}

// decodeCommit takes apart what encodeCommit made, and nothing else: bytes that
// would not be encoded again the same way are refused, for they would give one
// commit two ids.
func decodeCommit(b []byte) (*Commit, error) {
	var v struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if err := cbor.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("decode commit: %w", err)
	}
	if v.Version != commitVersion {
		return nil, fmt.Errorf("decode commit: %w: version %d, want %d", ErrFormat, v.Version, commitVersion)
	}
	var e commitV1
	if err := cborDec.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("decode commit: %w", err)
	}
	c := &Commit{
		Kind: KindFull, Created: time.Unix(0, e.Created).UTC(), Author: e.Author, Message: e.Message, Labels: e.Labels,
		Branch: e.Branch, Sandbox: e.Sandbox, SandboxID: e.SandboxID,
		Image:   ImageRef{ID: e.Image.ID, Name: e.Image.Name, RootfsDigest: e.Image.Rootfs},
		Machine: e.Machine,
		Stats: Stats{MemoryResidentBytes: e.Stats.MemoryResident, MemoryChangedBytes: e.Stats.MemoryChanged, MemoryStoredBytes: e.Stats.MemoryStored,
			DiskChangedBytes: e.Stats.DiskChanged, DiskStoredBytes: e.Stats.DiskStored},
	}
	switch e.Kind {
	case 1:
	case 2:
		c.Kind = KindDisk
	default:
		return nil, fmt.Errorf("decode commit: unknown kind %d", e.Kind)
	}
	var errs [4]error
	c.Devices, errs[0] = decodeHash(e.Devices)
	c.Memory, errs[1] = decodeMap(e.Memory)
	disk, err := decodeMap(e.Disk)
	errs[2] = err
	if disk != nil {
		c.Disk = *disk
	}
	for _, p := range e.Parents {
		h, err := decodeHash(p)
		errs[3] = errors.Join(errs[3], err)
		c.Parents = append(c.Parents, h)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("decode commit: %w", err)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("decode commit: %w", err)
	}
	again, err := encodeCommit(c)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, errors.New("decode commit: not in canonical form")
	}
	return c, nil
}

func encodeMap(m *Map) *mapV1 {
	if m == nil {
		return nil
	}
	return &mapV1{Root: encodeHash(m.Root), SizeBytes: m.SizeBytes, PageBytes: uint32(m.PageBytes)}
}

func decodeMap(m *mapV1) (*Map, error) {
	if m == nil {
		return nil, nil
	}
	root, err := decodeHash(m.Root)
	return &Map{Root: root, SizeBytes: m.SizeBytes, PageBytes: int(m.PageBytes)}, err
}

// encodeHash returns nil for the zero hash, which decodeHash turns back.
func encodeHash(h Hash) []byte {
	if h.IsZero() {
		return nil
	}
	return h[:]
}

func decodeHash(b []byte) (Hash, error) {
	switch len(b) {
	case 0:
		return Hash{}, nil
	case HashBytes:
		return Hash(b), nil
	}
	return Hash{}, fmt.Errorf("hash of %d bytes", len(b))
}

// headV1 and reflogV1 are the records behind HEADs and reflogs.
type headV1 struct {
	_        struct{} `cbor:",toarray"`
	Version  uint64
	Branch   string
	Detached []byte
	Commit   []byte
}

func encodeHead(h HeadState) ([]byte, error) {
	return cborEnc.Marshal(headV1{Version: valueVersion, Branch: h.Head.Branch, Detached: encodeHash(h.Head.Commit), Commit: encodeHash(h.Commit)})
}

func decodeHead(b []byte) (HeadState, error) {
	var e headV1
	if err := cborDec.Unmarshal(b, &e); err != nil {
		return HeadState{}, fmt.Errorf("decode HEAD: %w", err)
	}
	if e.Version != valueVersion {
		return HeadState{}, fmt.Errorf("decode HEAD: %w: version %d", ErrFormat, e.Version)
	}
	detached, err1 := decodeHash(e.Detached)
	commit, err2 := decodeHash(e.Commit)
	if err := errors.Join(err1, err2); err != nil {
		return HeadState{}, fmt.Errorf("decode HEAD: %w", err)
	}
	return HeadState{Head: Head{Branch: e.Branch, Commit: detached}, Commit: commit}, nil
}

type reflogV1 struct {
	_       struct{} `cbor:",toarray"`
	Version uint64
	Commit  []byte
	Action  string
	Message string
	Time    int64 // nanoseconds since 1970
}

func encodeReflog(e ReflogEntry) ([]byte, error) {
	return cborEnc.Marshal(reflogV1{Version: valueVersion, Commit: encodeHash(e.Commit), Action: e.Action, Message: e.Message, Time: e.Time.UnixNano()})
}

func decodeReflog(b []byte) (ReflogEntry, error) {
	var e reflogV1
	if err := cborDec.Unmarshal(b, &e); err != nil {
		return ReflogEntry{}, fmt.Errorf("decode reflog entry: %w", err)
	}
	if e.Version != valueVersion {
		return ReflogEntry{}, fmt.Errorf("decode reflog entry: %w: version %d", ErrFormat, e.Version)
	}
	h, err := decodeHash(e.Commit)
	if err != nil {
		return ReflogEntry{}, fmt.Errorf("decode reflog entry: %w", err)
	}
	return ReflogEntry{Commit: h, Action: e.Action, Message: e.Message, Time: time.Unix(0, e.Time).UTC()}, nil
}

// A ref's record is its commit.
func encodeRef(h Hash) []byte { return append([]byte{valueVersion}, h[:]...) }

func decodeRef(b []byte) (Hash, error) {
	r := reader{b: b}
	r.version(valueVersion)
	h := r.hash()
	return h, r.end("ref")
}
