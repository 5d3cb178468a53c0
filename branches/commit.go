package branches

import (
	"context"
	"errors"
	"time"
)

// Kind says what a commit holds.
type Kind string

const (
	KindFull Kind = "full" // memory, devices and disk
	KindDisk Kind = "disk" // disk only; restoring it is a cold boot
)

// Commit is one immutable node of the history: a whole machine at one instant.
// Its id is the hash of its canonical encoding (docs/format.md).
type Commit struct {
	ID Hash `cbor:"-"`

	Parents   []Hash
	Kind      Kind
	Branch    string // branch it was made on; empty when HEAD was detached
	Sandbox   string // name of the sandbox it was made in
	SandboxID string
	Message   string
	Author    string
	Created   time.Time // kept to the nanosecond, in UTC
	Labels    map[string]string
	Image     ImageRef

	// Machine is CBOR owned by the caller (shape, VMM identity, guest config).
	Machine []byte
	Memory  *Map // nil for KindDisk
	Devices Hash // blob; zero for KindDisk
	Disk    Map
	Stats   Stats
}

// ImageRef says which image the machine was started from.
type ImageRef struct {
	ID           string
	Name         string
	RootfsDigest string
}

// Stats are the sizes of a commit, as counted when it was made.
type Stats struct {
	MemoryResidentBytes int64
	MemoryChangedBytes  int64
	MemoryStoredBytes   int64
	DiskChangedBytes    int64
	DiskStoredBytes     int64
}

// Commit reads one commit. ErrNotFound when there is none of that id.
func (s *Store) Commit(ctx context.Context, id Hash) (*Commit, error) {
	return nil, errors.ErrUnsupported
}

// Blob reads what [Writer.WriteBlob] wrote; its hash is verified.
func (s *Store) Blob(ctx context.Context, id Hash) ([]byte, error) {
	return nil, errors.ErrUnsupported
}
