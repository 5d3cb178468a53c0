package branches

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
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

// Limits of a commit's free fields, so that one fits in a transaction.
const (
	maxParents      = 64
	maxMessageBytes = 64 << 10
	maxMachineBytes = 64 << 10
	maxLabels       = 256
	maxFieldBytes   = 4 << 10 // any other string
	maxCommitBytes  = maxValueBytes - 16
)

// validate reports everything that is wrong with a commit about to be written,
// one line each.
func (c *Commit) validate() error {
	var errs []error
	bad := func(field, format string, a ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, a...)))
	}
	text := func(field, v string, limit int) {
		switch {
		case len(v) > limit:
			bad(field, "%d bytes, at most %d are allowed", len(v), limit)
		case !utf8.ValidString(v):
			bad(field, "not valid UTF-8")
		}
	}
	switch c.Kind {
	case KindFull:
		if c.Memory == nil {
			bad("memory", "missing in a full commit")
		}
	case KindDisk:
		if c.Memory != nil || !c.Devices.IsZero() {
			bad("memory", "present in a commit of the disk only")
		}
	default:
		bad("kind", "unknown kind %q", c.Kind)
	}
	if c.Memory != nil {
		if err := c.Memory.validate(); err != nil {
			bad("memory", "%v", err)
		}
	}
	if err := c.Disk.validate(); err != nil && c.Disk != (Map{}) {
		bad("disk", "%v", err)
	}
	if len(c.Parents) > maxParents {
		bad("parents", "%d, at most %d are allowed", len(c.Parents), maxParents)
	}
	seen := map[Hash]bool{}
	for _, p := range c.Parents {
		if p.IsZero() || p == Self || seen[p] {
			bad("parents", "%s is zero, a placeholder or there twice", p.Short())
		}
		seen[p] = true
	}
	if c.Branch != "" {
		if err := ValidateName(c.Branch); err != nil {
			bad("branch", "%v", err)
		}
	}
	text("sandbox", c.Sandbox, maxFieldBytes)
	text("sandbox id", c.SandboxID, maxFieldBytes)
	text("message", c.Message, maxMessageBytes)
	text("author", c.Author, maxFieldBytes)
	text("image", c.Image.ID, maxFieldBytes)
	text("image", c.Image.Name, maxFieldBytes)
	text("image", c.Image.RootfsDigest, maxFieldBytes)
	if len(c.Labels) > maxLabels {
		bad("labels", "%d, at most %d are allowed", len(c.Labels), maxLabels)
	}
	for k, v := range c.Labels {
		text("label", k, maxFieldBytes)
		text("label "+k, v, maxFieldBytes)
	}
	if len(c.Machine) > maxMachineBytes {
		bad("machine", "%d bytes, at most %d are allowed", len(c.Machine), maxMachineBytes)
	}
	if y := c.Created.UTC().Year(); y < 1970 || y > 2200 {
		bad("created", "year %d", y)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("commit is not valid: %w", err)
	}
	return nil
}

// commitRecord is a commit as the index keeps it: its canonical encoding
// behind a date to sort by. That date is Created, moved past the dates of all
// parents, so that sorting by it never puts a parent before its child, whatever
// the clocks were doing. It is derived and no part of the commit's identity.
type commitRecord struct {
	sortDate int64 // nanoseconds since 1970
	encoded  []byte
}

func (r commitRecord) encode() []byte {
	b := binary.BigEndian.AppendUint64([]byte{valueVersion}, uint64(r.sortDate))
	return append(b, r.encoded...)
}

// decodeCommitRecord checks that the record is the commit of that id. The
// encoding is a slice of val.
func decodeCommitRecord(id Hash, val []byte) (commitRecord, error) {
	bad := func(why string) error { return &CorruptError{Kind: "commit", Object: id.String(), Reason: why} }
	if len(val) < 9 {
		return commitRecord{}, bad(errTruncated.Error())
	}
	if val[0] != valueVersion {
		return commitRecord{}, fmt.Errorf("commit %s: %w: version %d, want %d", id.Short(), ErrFormat, val[0], valueVersion)
	}
	r := commitRecord{int64(binary.BigEndian.Uint64(val[1:])), val[9:]}
	if got := commitDomain.sum(r.encoded); got != id {
		return commitRecord{}, bad(fmt.Sprintf("its bytes hash to %s", got))
	}
	return r, nil
}

// Commit reads one commit. ErrNotFound when there is none of that id.
func (s *Store) Commit(ctx context.Context, id Hash) (*Commit, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	c, _, err := v.commit(id)
	return c, err
}

// commit reads one commit and its sort date.
func (v *view) commit(id Hash) (*Commit, int64, error) {
	var r commitRecord
	ok, err := v.get(hashKey(tableCommit, id), func(val []byte) error {
		var err error
		r, err = decodeCommitRecord(id, val)
		r.encoded = bytes.Clone(r.encoded)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if !ok {
		return nil, 0, fmt.Errorf("commit %s: %w", id.Short(), ErrNotFound)
	}
	c, err := decodeCommit(r.encoded)
	if err != nil {
		return nil, 0, &CorruptError{Kind: "commit", Object: id.String(), Reason: err.Error()}
	}
	c.ID = id
	return c, r.sortDate, nil
}

// Commit stores c and applies tx in one transaction, after everything written
// before is durable: body, index, node, ref. [Self] in tx is the new id. It
// sets c.ID, and c.Created when that is zero. Storing a commit that exists
// already is no error.
func (w *Writer) Commit(ctx context.Context, c *Commit, tx Update) (Hash, error) {
	end, err := w.begin()
	if err != nil {
		return Hash{}, err
	}
	defer end()
	if c.Created.IsZero() {
		c.Created = w.s.now()
	}
	c.Created = c.Created.UTC().Round(0)
	if err := c.validate(); err != nil {
		return Hash{}, err
	}
	encoded, err := encodeCommit(c)
	if err != nil {
		return Hash{}, err
	}
	if len(encoded) > maxCommitBytes {
		return Hash{}, fmt.Errorf("commit is not valid: its encoding has %d bytes, at most %d are allowed", len(encoded), maxCommitBytes)
	}
	id := commitDomain.sum(encoded)
	if err := tx.validate(true); err != nil {
		return Hash{}, err
	}
	if err := w.keep(c); err != nil {
		return Hash{}, fmt.Errorf("commit: %w", err)
	}
	if err := w.flush(ctx); err != nil {
		return Hash{}, w.fail(fmt.Errorf("commit: %w", err))
	}
	if err := w.s.needSpace(int64(2 * len(encoded))); err != nil {
		return Hash{}, fmt.Errorf("commit: %w", err)
	}
	s := w.s
	s.update.Lock()
	defer s.update.Unlock()
	s.leases.mu.RLock()
	defer s.leases.mu.RUnlock()
	err = s.index.atomically("commit", func(ch *change) error {
		sortDate, err := checkLinks(&ch.view, c)
		if err != nil {
			return err
		}
		if err := ch.set(hashKey(tableCommit, id), commitRecord{sortDate, encoded}.encode()); err != nil {
			return err
		}
		return s.apply(ch, tx, id)
	})
	if err != nil {
		return Hash{}, fmt.Errorf("commit: %w", err)
	}
	w.lease.mu.Lock()
	w.lease.commits[id] = struct{}{}
	w.lease.mu.Unlock()
	c.ID = id
	return id, nil
}

// keep enters what a commit names in the lease, also if it was not written under
// it: a commit may share a map with its parent as it is.
func (w *Writer) keep(c *Commit) error {
	for _, m := range []*Map{c.Memory, &c.Disk} {
		if m == nil {
			continue
		}
		if err := w.s.pin(w.lease, *m); err != nil {
			return err
		}
	}
	if !c.Devices.IsZero() && !w.lease.has(c.Devices) {
		w.s.leases.mu.RLock()
		defer w.s.leases.mu.RUnlock()
		v := w.s.index.view()
		defer v.discard()
		ok, err := v.has(hashKey(tableBlob, c.Devices))
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("devices %s: %w", c.Devices.Short(), ErrNotFound)
		}
		w.lease.add(c.Devices)
	}
	return nil
}

// checkLinks makes sure that everything a commit names is there, and returns
// its sort date.
func checkLinks(v *view, c *Commit) (sortDate int64, err error) {
	sortDate = c.Created.UnixNano()
	for _, p := range c.Parents {
		_, date, err := v.commit(p)
		if err != nil {
			return 0, fmt.Errorf("parent: %w", err)
		}
		sortDate = max(sortDate, date+1)
	}
	need := func(what string, table byte, h Hash) error {
		if h.IsZero() {
			return nil
		}
		ok, err := v.has(hashKey(table, h))
		if err == nil && !ok {
			err = fmt.Errorf("%s %s: %w", what, h.Short(), ErrNotFound)
		}
		return err
	}
	errs := []error{need("devices", tableBlob, c.Devices), need("disk", tableNode, c.Disk.Root)}
	if c.Memory != nil {
		errs = append(errs, need("memory", tableNode, c.Memory.Root))
	}
	return sortDate, errors.Join(errs...)
}
