package branches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Writer adds objects. It is a lease as well: nothing it wrote or found stored
// already is collected before Close. Methods are not safe for concurrent use;
// several writers may work side by side.
//
// After an error from WriteMap, WriteBlob or Flush the writer is of no more
// use: what it meant to store may be half there. The store is none the worse.
type Writer struct {
	s      *Store
	lease  *lease
	closed bool
	failed error

	held    map[*pack]struct{} // packs written to
	chunks  []pendingChunk     // appended to packs, not in the index yet
	blobs   map[Hash]location
	nodesMu sync.RWMutex
	nodes   map[Hash][]byte // not flushed yet
	order   []Hash          // of nodes: children before parents
	pending int64           // bytes the index is going to grow by
}

type pendingChunk struct {
	hash Hash
	loc  location
}

// flushEntries is how much a writer keeps in memory before it makes it durable.
const flushEntries = 1 << 18

// NewWriter starts a lease.
func (s *Store) NewWriter(ctx context.Context) (*Writer, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	return &Writer{s: s, lease: s.leases.start(), held: map[*pack]struct{}{}, blobs: map[Hash]location{}, nodes: map[Hash][]byte{}}, nil
}

// begin checks that the writer may be used.
func (w *Writer) begin() (end func(), err error) {
	switch {
	case w.closed:
		return nil, fmt.Errorf("use writer: %w", ErrClosed)
	case w.failed != nil:
		return nil, fmt.Errorf("use writer after an error: %w", w.failed)
	}
	return w.s.begin()
}

// fail remembers err: what was claimed for this writer may not be stored.
func (w *Writer) fail(err error) error {
	if err != nil && w.failed == nil {
		w.failed = err
	}
	return err
}

// WriteBlob stores a small object (at most MaxBlobBytes), such as device state.
// stored is the number of bytes added, 0 when it was there.
func (w *Writer) WriteBlob(ctx context.Context, data []byte) (id Hash, stored int64, err error) {
	end, err := w.begin()
	if err != nil {
		return Hash{}, 0, err
	}
	defer end()
	if len(data) > MaxBlobBytes {
		return Hash{}, 0, fmt.Errorf("write blob: %d bytes, at most %d are allowed", len(data), MaxBlobBytes)
	}
	id = blobDomain.sum(data)
	known, err := w.findStored(hashKey(tableBlob, id), id)
	if err != nil || known {
		return id, 0, w.fail(err)
	}
	if err := w.s.needSpace(int64(len(data))); err != nil {
		return Hash{}, 0, w.fail(err)
	}
	enc := encoders.Get().(*zstd.Encoder)
	block := encodeBlock(nil, blobBlock, len(data), data, enc)
	encoders.Put(enc)
	p, off, err := w.s.packs.append(block, w.held)
	if err != nil {
		return Hash{}, 0, w.fail(fmt.Errorf("write blob: %w", err))
	}
	w.blobs[id] = location{pack: p.id, offset: off, length: len(block)}
	w.pending += indexEntryBytes
	return id, int64(len(block)) + indexEntryBytes, nil
}

// findStored enters id in the lease and reports whether it needs no storing.
func (w *Writer) findStored(key []byte, id Hash) (bool, error) {
	w.s.leases.mu.RLock()
	defer w.s.leases.mu.RUnlock()
	if !w.lease.claim(id) {
		return true, nil
	}
	v := w.s.index.view()
	defer v.discard()
	return v.has(key)
}

// addNode keeps a tree node for the next flush, unless the store has it.
// added is what the index grows by.
func (w *Writer) addNode(n *node, record []byte) (added int64, err error) {
	if _, ok := w.nodes[n.hash]; ok {
		return 0, nil
	}
	w.s.leases.mu.RLock()
	defer w.s.leases.mu.RUnlock()
	v := w.s.index.view()
	defer v.discard()
	stored, kept, err := v.storedNode(n.hash)
	if err != nil {
		return 0, err
	}
	w.lease.add(n.hash)
	if kept != nil {
		// The record of a node must not change while others are based on it,
		// directly or not: a new one could be based on one of those.
		record = kept
	}
	if stored || kept != nil {
		if err := w.keepBases(v, record); err != nil {
			return 0, err
		}
	}
	if stored {
		return 0, nil
	}
	w.nodesMu.Lock()
	w.nodes[n.hash] = record
	w.nodesMu.Unlock()
	w.order = append(w.order, n.hash)
	added = int64(len(record)) + indexEntryBytes - 16
	w.pending += added
	return added, nil
}

// storedNode says whether a node is in the index, and returns its record when
// that is there at all, be it only as the base of others.
func (v *view) storedNode(h Hash) (stored bool, record []byte, err error) {
	keep := func(val []byte) error { record = bytes.Clone(val); return nil }
	if stored, err = v.get(hashKey(tableNode, h), keep); stored || err != nil {
		return stored, record, err
	}
	_, err = v.get(hashKey(tableBase, h), keep)
	return false, record, err
}

// keepBases enters the chain a record rests on in the lease.
func (w *Writer) keepBases(v *view, record []byte) error {
	for range maxDeltaHops {
		rec, err := decodeNode(record)
		if err != nil || rec.depth == 0 {
			return err
		}
		w.lease.mu.Lock()
		w.lease.bases[rec.base] = struct{}{}
		w.lease.mu.Unlock()
		if _, record, err = v.storedNode(rec.base); err != nil {
			return err
		}
		if record == nil {
			return &CorruptError{Kind: "node", Object: rec.base.String(), Reason: "missing, though others are stored as deltas of it"}
		}
	}
	return &CorruptError{Kind: "node", Object: fmt.Sprintf("%x", record[:min(len(record), 8)]), Reason: "its chain of bases does not end"}
}

// Flush makes everything written so far durable and readable, though reachable
// from nothing. Commit does it too.
func (w *Writer) Flush(ctx context.Context) error {
	end, err := w.begin()
	if err != nil {
		return err
	}
	defer end()
	return w.fail(w.flush(ctx))
}

// flush goes body → fsync → index → node.
func (w *Writer) flush(ctx context.Context) error {
	if len(w.chunks)+len(w.blobs)+len(w.order) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("flush writer: %w", err)
	}
	s := w.s
	s.flush.Lock()
	defer s.flush.Unlock()
	if err := s.needSpace(2 * w.pending); err != nil {
		return err
	}
	b := s.index.batch("index")
	defer b.cancel()
	for p := range w.held {
		n, err := s.packs.sync(p)
		if err != nil {
			return fmt.Errorf("flush writer: %w", err)
		}
		if err := b.set(packKey(p.id), encodePackRecord(n)); err != nil {
			return err
		}
	}
	// In the order of their hashes: the index likes it.
	slices.SortFunc(w.chunks, func(x, y pendingChunk) int { return bytes.Compare(x.hash[:], y.hash[:]) })
	for _, c := range w.chunks {
		if err := b.set(hashKey(tableChunk, c.hash), c.loc.encode()); err != nil {
			return err
		}
	}
	for h, loc := range w.blobs {
		if err := b.set(hashKey(tableBlob, h), loc.encode()); err != nil {
			return err
		}
	}
	if err := w.flushNodes(b); err != nil {
		return err
	}
	if err := b.flush(); err != nil {
		return err
	}
	w.chunks, w.order, w.pending = w.chunks[:0], nil, 0
	clear(w.blobs)
	clear(w.nodes)
	s.packs.letGo(w.held)
	return nil
}

// flushNodes writes nodes after all they name. Another writer may have stored
// one of them in the meantime: its record stays.
func (w *Writer) flushNodes(b *batch) error {
	w.s.leases.mu.RLock()
	defer w.s.leases.mu.RUnlock()
	v := w.s.index.view()
	defer v.discard()
	for _, h := range w.order {
		stored, base, err := v.storedNode(h)
		if err != nil {
			return err
		}
		if stored || base != nil {
			if err := w.keepBases(v, base); err != nil {
				return err
			}
		}
		if stored {
			continue
		}
		record := w.nodes[h]
		if base != nil {
			record = base
		}
		if err := b.set(hashKey(tableNode, h), record); err != nil {
			return err
		}
		if base != nil { // in this order: at no time is it in neither table
			if err := b.delete(hashKey(tableBase, h)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends the lease. What was written and not committed is left to gc.
// Idempotent.
func (w *Writer) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	w.s.leases.end(w.lease)
	end, err := w.s.begin()
	if errors.Is(err, ErrClosed) {
		return nil // the store's Close has closed the packs
	}
	if err != nil {
		return err
	}
	defer end()
	w.s.packs.letGo(w.held)
	return nil
}

// nodeRecord finds nodes this writer has not flushed too.
func (w *Writer) nodeRecord(h Hash) (nodeRecord, bool, error) {
	w.nodesMu.RLock()
	b, ok := w.nodes[h]
	w.nodesMu.RUnlock()
	if ok {
		rec, err := decodeNode(b)
		return rec, true, err
	}
	return w.s.nodeRecord(h)
}

// nodeRecord reads a node's record from the index.
func (s *Store) nodeRecord(h Hash) (nodeRecord, bool, error) {
	v := s.index.view()
	defer v.discard()
	return v.nodeRecord(h)
}

func (v *view) nodeRecord(h Hash) (rec nodeRecord, ok bool, err error) {
	decode := func(val []byte) error {
		var err error
		if rec, err = decodeNode(val); err != nil {
			err = &CorruptError{Kind: "node", Object: h.String(), Reason: err.Error()}
		}
		return err
	}
	if ok, err = v.get(hashKey(tableNode, h), decode); ok || err != nil {
		return rec, ok, err
	}
	ok, err = v.get(hashKey(tableBase, h), decode)
	return rec, ok, err
}
