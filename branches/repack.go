package branches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// rewriteWaste is the share of a pack that has to be dead before gc rewrites
// it: 1/rewriteWaste.
const rewriteWaste = 8

// packUse is what of a pack is alive.
type packUse struct {
	id     uint64
	size   int64
	blocks map[int64]*blockUse // by offset
	// damaged packs are left alone.
	damaged bool
}

// blockUse is what of a block is alive.
type blockUse struct {
	length int
	alive  int // pages, or the blob
	count  int // pages in it; 0 until asked for
}

// waste is how many bytes rewriting would give back, about.
func (u *packUse) waste() int64 {
	used := int64(packHeaderBytes)
	for _, b := range u.blocks {
		used += int64(b.length) * int64(b.alive) / int64(max(b.count, 1))
	}
	return u.size - used
}

func (u *packUse) empty() bool          { return !u.damaged && len(u.blocks) == 0 }
func (u *packUse) worthRewriting() bool { return !u.damaged && u.waste() > u.size/rewriteWaste }

// waiting is what is dead in a pack that is left as it is.
func (u *packUse) waiting() int64 {
	if u.damaged {
		return 0
	}
	return max(0, u.waste())
}

// packUsage works out what is alive in every pack that is not busy: of what is
// in the index, what live has (nil: all of it).
func (s *Store) packUsage(ctx context.Context, v *view, live *liveSet, busy map[uint64]bool) (map[uint64]*packUse, error) {
	use := map[uint64]*packUse{}
	err := v.scan([]byte{tablePack}, func(key, val []byte) error {
		n, err := decodePackRecord(val)
		if err == nil && !busy[packKeyID(key)] {
			use[packKeyID(key)] = &packUse{id: packKeyID(key), size: n, blocks: map[int64]*blockUse{}}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	all := func(Hash) bool { return true }
	chunk, blob := all, all
	if live != nil {
		chunk, blob = live.hasChunk, live.hasBlob
	}
	for _, t := range []struct {
		table byte
		alive func(Hash) bool
	}{{tableChunk, chunk}, {tableBlob, blob}} {
		err := v.scan([]byte{t.table}, func(key, val []byte) error {
			if _, dead := deadKey(key, t.alive); dead {
				return nil
			}
			loc, err := decodeLocation(val)
			if err != nil {
				return &CorruptError{Kind: "chunk", Object: fmt.Sprintf("%x", key[1:]), Reason: err.Error()}
			}
			u := use[loc.pack]
			if u == nil {
				return nil
			}
			b := u.blocks[loc.offset]
			if b == nil {
				b = &blockUse{length: loc.length}
				u.blocks[loc.offset] = b
			}
			b.alive++
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, u := range use {
		if err := s.countPages(ctx, u); err != nil {
			return nil, err
		}
	}
	return use, nil
}

// countPages reads the headers of a pack's blocks.
func (s *Store) countPages(ctx context.Context, u *packUse) error {
	var head [blockHeaderBytes]byte
	for off, b := range u.blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.packs.readAt(u.id, head[:], off)
		var h blockHeader
		if err == nil {
			h, err = decodeBlockHeader(head[:])
		}
		if err != nil {
			s.log.Warn("gc leaves a damaged pack alone", "store", s.dir, "pack", u.id, "error", err)
			u.damaged = true
			return nil
		}
		b.count = h.count
	}
	return nil
}

// busy returns the packs with blocks that no index names yet.
func (ps *packs) busy() map[uint64]bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := map[uint64]bool{}
	for id, p := range ps.open {
		if p.writers > 0 {
			out[id] = true
		}
	}
	return out
}

// sweepPacks removes packs with nothing alive in them and moves what is alive
// out of packs that are largely dead.
func (r *gcRun) sweepPacks(ctx context.Context) error {
	s := r.s
	// The pack being appended to is to be had as well; the next write begins
	// another. A pack that is not busy after that gets no more blocks, so a
	// picture of the index taken then knows all that is in it.
	s.packs.seal()
	busy := s.packs.busy()
	v := s.index.view()
	usage, err := s.packUsage(ctx, v, nil, busy)
	v.discard()
	if err != nil {
		return err
	}
	var empty, sparse []*packUse
	for _, id := range slices.Sorted(maps.Keys(usage)) {
		switch u := usage[id]; {
		case u.empty():
			empty = append(empty, u)
		case u.worthRewriting():
			sparse = append(sparse, u)
		default:
			r.result.WaitingBytes += u.waiting()
		}
	}
	if err := r.dropPacks(empty); err != nil {
		return err
	}
	r.result.PacksRemoved += len(empty)
	// Some at a time, so that what has to be remembered stays within bounds.
	for len(sparse) > 0 {
		n, bytes := 0, int64(0)
		for n < len(sparse) && (n == 0 || bytes+sparse[n].size < 1<<30) {
			bytes += sparse[n].size
			n++
		}
		if err := r.rewrite(ctx, sparse[:n]); err != nil {
			if errors.Is(err, ErrNoSpace) {
				s.log.Info("packs are not rewritten", "store", s.dir, "reason", err)
				for _, u := range sparse {
					r.result.WaitingBytes += u.waiting()
				}
				return nil
			}
			return err
		}
		r.result.PacksRewritten += n
		sparse = sparse[n:]
	}
	return nil
}

// dropPacks takes packs out of the index, then off the disk.
func (r *gcRun) dropPacks(packs []*packUse) error {
	if len(packs) == 0 {
		return nil
	}
	b := r.s.index.batch("gc packs")
	defer b.cancel()
	var ids []uint64
	for _, u := range packs {
		if err := b.delete(packKey(u.id)); err != nil {
			return err
		}
		ids = append(ids, u.id)
		r.result.FreedBytes += u.size
	}
	if err := b.flush(); err != nil {
		return err
	}
	return r.s.packs.retire(ids)
}

// moving is a page or blob on its way to another pack.
type moving struct {
	key []byte
	loc location
}

// rewrite copies what is alive in some packs, points the index at the copies,
// and drops the packs.
func (r *gcRun) rewrite(ctx context.Context, from []*packUse) error {
	s := r.s
	want := map[uint64]bool{}
	need := int64(0)
	for _, u := range from {
		want[u.id] = true
		need += u.size - u.waste()
	}
	if err := s.needSpace(need + need/8); err != nil {
		return err
	}
	var items []moving
	v := s.index.view()
	for _, table := range []byte{tableChunk, tableBlob} {
		err := v.scan([]byte{table}, func(key, val []byte) error {
			loc, err := decodeLocation(val)
			if err == nil && want[loc.pack] {
				items = append(items, moving{key: bytes.Clone(key), loc: loc})
			}
			return err
		})
		if err != nil {
			v.discard()
			return err
		}
	}
	v.discard()
	slices.SortFunc(items, func(a, b moving) int { return compareLocations(a.loc, b.loc) })
	m := newMover(s)
	defer m.close()
	for len(items) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := 1
		for n < len(items) && items[n].loc.pack == items[0].loc.pack && items[n].loc.offset == items[0].loc.offset {
			n++
		}
		if err := m.block(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	if err := m.finish(); err != nil {
		return err
	}
	if err := r.dropPacks(from); err != nil {
		return err
	}
	r.result.FreedBytes -= m.written
	return nil
}

// mover writes blocks anew. A block that is alive as a whole is copied as it
// is; pages of others are put together into new blocks.
type mover struct {
	s       *Store
	dec     *zstd.Decoder
	enc     *zstd.Encoder
	held    map[*pack]struct{}
	in, raw []byte
	written int64

	unit  int // page size of what is gathered
	pages []byte
	keys  [][]byte
	moved []movedKey
}

type movedKey struct {
	key []byte
	loc location
}

func newMover(s *Store) *mover {
	return &mover{s: s, dec: decoders.Get().(*zstd.Decoder), enc: encoders.Get().(*zstd.Encoder), held: map[*pack]struct{}{}}
}

func (m *mover) close() {
	decoders.Put(m.dec)
	encoders.Put(m.enc)
	m.s.packs.letGo(m.held)
}

// block moves the live items of one block.
func (m *mover) block(items []moving) error {
	at := items[0].loc
	m.in = slices.Grow(m.in[:0], at.length)[:at.length]
	damaged := func(err error) error {
		return &CorruptError{Kind: "pack", Object: packName(at.pack), Reason: fmt.Sprintf("block at %d: %v", at.offset, err)}
	}
	if err := m.s.packs.readAt(at.pack, m.in, at.offset); err != nil {
		return damaged(err)
	}
	h, raw, err := decodeBlock(m.raw, m.in, m.dec)
	if err != nil {
		return damaged(err)
	}
	m.raw = raw
	keys := make([][]byte, len(items))
	whole := h.count == len(items)
	for i, it := range items {
		keys[i] = it.key
		whole = whole && it.loc.slot == i
	}
	if whole {
		return m.write(m.in, keys)
	}
	if h.kind != pagesBlock {
		return damaged(errors.New("a blob in several pieces"))
	}
	if m.unit != h.unit {
		if err := m.gathered(); err != nil {
			return err
		}
		m.unit = h.unit
	}
	for _, it := range items {
		if it.loc.slot >= h.count {
			return damaged(fmt.Errorf("page %d of %d", it.loc.slot, h.count))
		}
		m.pages = append(m.pages, raw[it.loc.slot*h.unit:(it.loc.slot+1)*h.unit]...)
		m.keys = append(m.keys, it.key)
		if len(m.pages)+h.unit > blockRawBytes {
			if err := m.gathered(); err != nil {
				return err
			}
		}
	}
	return nil
}

// gathered writes the pages put together so far.
func (m *mover) gathered() error {
	if len(m.keys) == 0 {
		return nil
	}
	block := encodeBlock(nil, pagesBlock, m.unit, m.pages, m.enc)
	keys := m.keys
	m.pages, m.keys = m.pages[:0], nil
	return m.write(block, keys)
}

// write appends a block whose slots are keys, in order.
func (m *mover) write(block []byte, keys [][]byte) error {
	p, off, err := m.s.packs.append(block, m.held)
	if err != nil {
		return err
	}
	m.written += int64(len(block))
	for slot, k := range keys {
		m.moved = append(m.moved, movedKey{k, location{pack: p.id, offset: off, length: len(block), slot: slot}})
	}
	return nil
}

// finish makes the copies durable, then points the index at them.
func (m *mover) finish() error {
	if err := m.gathered(); err != nil {
		return err
	}
	s := m.s
	s.flush.Lock()
	defer s.flush.Unlock()
	b := s.index.batch("gc move")
	defer b.cancel()
	for p := range m.held {
		n, err := s.packs.sync(p)
		if err != nil {
			return err
		}
		if err := b.set(packKey(p.id), encodePackRecord(n)); err != nil {
			return err
		}
	}
	slices.SortFunc(m.moved, func(a, b movedKey) int { return bytes.Compare(a.key, b.key) })
	for _, k := range m.moved {
		if err := b.set(k.key, k.loc.encode()); err != nil {
			return err
		}
	}
	return b.flush()
}
