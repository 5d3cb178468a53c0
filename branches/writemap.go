package branches

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// batchBytes is how much page data travels through WriteMap's pipeline at a
// time: enough for several blocks, little enough to keep every worker busy.
const batchBytes = 1 << 20

// WriteMap stores the space parent becomes when the changed pages are laid over
// it, in O(changed). The zero parent is an empty space. Indexes ascend
// strictly; Data is read before the next step; an all-zero page is a hole.
// sizeBytes may be larger than the parent's, or smaller by whole pages.
//
// Nothing is durable, and nothing can be read through the store, before Commit
// or Flush returns; the same writer may use the new map as a parent at once.
func (w *Writer) WriteMap(ctx context.Context, parent Map, sizeBytes int64, pageBytes int, changed iter.Seq2[Page, error]) (Map, MapStats, error) {
	end, err := w.begin()
	if err != nil {
		return Map{}, MapStats{}, err
	}
	defer end()
	m := Map{SizeBytes: sizeBytes, PageBytes: pageBytes}
	if err := checkShapes(parent, m); err != nil {
		return Map{}, MapStats{}, fmt.Errorf("write map: %w", err)
	}
	if err := w.s.pin(w.lease, parent); err != nil {
		return Map{}, MapStats{}, fmt.Errorf("write map: parent: %w", err)
	}
	m, st, err := w.writeMap(ctx, parent, m, changed)
	if err != nil {
		return Map{}, MapStats{}, w.fail(fmt.Errorf("write map: %w", err))
	}
	if len(w.chunks)+len(w.order) > flushEntries {
		if err := w.flush(ctx); err != nil {
			return Map{}, MapStats{}, w.fail(fmt.Errorf("write map: %w", err))
		}
	}
	return m, st, nil
}

func checkShapes(parent, m Map) error {
	if err := m.validate(); err != nil {
		return err
	}
	if parent == (Map{}) {
		return nil
	}
	if err := parent.validate(); err != nil {
		return fmt.Errorf("parent: %w", err)
	}
	if parent.PageBytes != m.PageBytes {
		return fmt.Errorf("page size %d differs from the parent's %d", m.PageBytes, parent.PageBytes)
	}
	if m.SizeBytes < parent.SizeBytes && m.SizeBytes%int64(m.PageBytes) != 0 {
		return fmt.Errorf("shrinking to %d bytes cuts a page of %d", m.SizeBytes, m.PageBytes)
	}
	return nil
}

// pageBatch is some changed pages on their way through the pipeline.
type pageBatch struct {
	index  []int64
	old    []Hash // what the parent has there
	leaves []leafAt
	hash   []Hash // zero for a hole
	data   []byte // the pages

	fresh  []Hash // the pages to store, in the order they have in blocks
	blocks []byte // encoded blocks, one behind the other
	starts []blockStart
	done   chan struct{}
}

// leafAt is a leaf of the parent the batch has changes in.
type leafAt struct {
	at   int64
	leaf *node // nil: a hole
}

// blockStart is where a block begins in pageBatch.blocks, and how many pages
// are in it.
type blockStart struct{ offset, length, count int }

// mapWriter is one WriteMap. The caller's goroutine reads the changes, and the
// parent's leaves for them; workers hash, look up and compress; one collector
// takes the batches in order, writes their blocks and builds the tree.
type mapWriter struct {
	w        *Writer
	m        Map
	zero     []byte
	perBatch int // pages
	free     sync.Pool
	old      *cursor // the reader's way through the parent
	tree     *treeBuilder
	stats    MapStats
}

func (w *Writer) writeMap(ctx context.Context, parent, m Map, changed iter.Seq2[Page, error]) (Map, MapStats, error) {
	mw := &mapWriter{w: w, m: m, zero: make([]byte, m.PageBytes), perBatch: max(1, batchBytes/m.PageBytes), old: newCursor(w, parent)}
	mw.free.New = func() any {
		return &pageBatch{data: make([]byte, 0, mw.perBatch*m.PageBytes)}
	}
	var err error
	mw.tree, err = newTreeBuilder(w, parent, m, func(n *node, record []byte) error {
		added, err := w.addNode(n, record)
		mw.stats.BytesStored += added
		return err
	})
	if err != nil {
		return Map{}, MapStats{}, err
	}
	workers := defaultWorkers()
	g, ctx := errgroup.WithContext(ctx)
	work := make(chan *pageBatch)
	ordered := make(chan *pageBatch, workers+1) // bounds what is in flight
	for range workers {
		g.Go(func() error { return mw.work(work) })
	}
	g.Go(func() error { return mw.collect(ctx, ordered) })
	submit := func(b *pageBatch) error {
		b.done = make(chan struct{})
		for _, to := range []chan *pageBatch{ordered, work} {
			select {
			case to <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	readErr := func() error {
		defer close(work) // also should the caller's iterator panic
		defer close(ordered)
		return mw.read(ctx, changed, submit)
	}()
	// What went wrong in the pipeline is why reading was broken off.
	if err := g.Wait(); err != nil {
		return Map{}, MapStats{}, err
	}
	if readErr != nil {
		return Map{}, MapStats{}, readErr
	}
	m, err = mw.tree.finish()
	return m, mw.stats, err
}

// read copies the caller's pages into batches.
func (mw *mapWriter) read(ctx context.Context, changed iter.Seq2[Page, error], submit func(*pageBatch) error) error {
	pages, last := mw.m.pages(), int64(-1)
	leaf := leafAt{at: -1}
	b := mw.newBatch()
	for p, err := range changed {
		switch {
		case err != nil:
			return fmt.Errorf("read changed pages: %w", err)
		case p.Index <= last || p.Index >= pages:
			return fmt.Errorf("page %d after page %d of %d: out of order or range", p.Index, last, pages)
		case len(p.Data) != mw.m.PageBytes:
			return fmt.Errorf("page %d: %d bytes, want %d", p.Index, len(p.Data), mw.m.PageBytes)
		case p.Index == pages-1 && !mw.tailIsZero(p.Data):
			return fmt.Errorf("page %d: not zero beyond the end of the space", p.Index)
		}
		last = p.Index
		if at := p.Index / fanout; at != leaf.at {
			n, err := mw.old.leafAt(at)
			if err != nil {
				return err
			}
			leaf = leafAt{at, n}
			b.leaves = append(b.leaves, leaf)
		} else if len(b.leaves) == 0 {
			b.leaves = append(b.leaves, leaf)
		}
		var old Hash
		if leaf.leaf != nil {
			old = leaf.leaf.kids[p.Index%fanout]
		}
		b.index = append(b.index, p.Index)
		b.old = append(b.old, old)
		b.data = append(b.data, p.Data...)
		if len(b.index) == mw.perBatch {
			if err := submit(b); err != nil {
				return err
			}
			b = mw.newBatch()
		}
	}
	if len(b.index) == 0 {
		return ctx.Err()
	}
	return submit(b)
}

func (mw *mapWriter) tailIsZero(page []byte) bool {
	used := mw.m.SizeBytes % int64(mw.m.PageBytes)
	return used == 0 || bytes.Equal(page[used:], mw.zero[used:])
}

func (mw *mapWriter) newBatch() *pageBatch {
	b := mw.free.Get().(*pageBatch)
	*b = pageBatch{index: b.index[:0], old: b.old[:0], leaves: b.leaves[:0], hash: b.hash[:0], data: b.data[:0], fresh: b.fresh[:0], blocks: b.blocks[:0], starts: b.starts[:0]}
	return b
}

// work is one worker.
func (mw *mapWriter) work(work <-chan *pageBatch) error {
	enc := encoders.Get().(*zstd.Encoder)
	defer encoders.Put(enc)
	for b := range work {
		if err := mw.process(b, enc); err != nil {
			return err
		}
		close(b.done)
	}
	return nil
}

// process hashes a batch, picks out what the store does not have, and
// compresses that into blocks.
func (mw *mapWriter) process(b *pageBatch, enc *zstd.Encoder) error {
	size := mw.m.PageBytes
	var ask []int
	for i := range b.index {
		page := b.data[i*size : (i+1)*size]
		var h Hash
		if !bytes.Equal(page, mw.zero) {
			h = HashPage(page)
			if h != b.old[i] {
				ask = append(ask, i)
			}
		}
		b.hash = append(b.hash, h)
	}
	fresh, err := mw.w.unknown(b.hash, ask)
	if err != nil {
		return err
	}
	young, err := mw.young(b, fresh)
	if err != nil {
		return err
	}
	// Pages that keep changing go into blocks of their own. Such a block is
	// soon of no use to newer commits, and one of the others for long; mixed,
	// every block would keep a few pages that a map needs, and reading one would
	// take more and more blocks as the history grows.
	var hot []byte
	var hotHashes []Hash
	n := 0
	for k, i := range fresh {
		page := b.data[i*size : (i+1)*size]
		if young[k] {
			hot = append(hot, page...)
			hotHashes = append(hotHashes, b.hash[i])
			continue
		}
		copy(b.data[n*size:], page) // n ≤ i, ascending
		b.fresh = append(b.fresh, b.hash[i])
		n++
	}
	b.encode(b.data[:n*size], size, enc)
	b.encode(hot, size, enc)
	b.fresh = append(b.fresh, hotHashes...)
	return nil
}

// youngAge: a page is taken for one that keeps changing when the version it
// replaces is at most so many times older than the youngest tenth of these.
const youngAge = 32

// young says which pages replace a version that was written not long ago, by
// how much has been written to the packs since. The youngest there are date
// from the last commit or so of this space, and are the measure for the rest.
func (mw *mapWriter) young(b *pageBatch, fresh []int) ([]bool, error) {
	young := make([]bool, len(fresh))
	ages := make([]int64, len(fresh)) // 0: there was nothing before
	var known []int64
	now := mw.w.s.packs.position()
	v := mw.w.s.index.view()
	defer v.discard()
	for k, i := range fresh {
		if b.old[i].IsZero() {
			continue
		}
		loc, ok, err := v.location(tableChunk, b.old[i])
		if err != nil {
			return nil, err
		}
		if ok {
			ages[k] = max(1, now-loc.position())
		} else { // of this writer, not flushed yet
			ages[k] = 1
		}
		known = append(known, ages[k])
	}
	if len(known) > 0 {
		slices.Sort(known)
		limit := known[len(known)/10]
		for k, age := range ages {
			young[k] = age > 0 && age/youngAge <= limit
		}
	}
	return young, nil
}

// encode compresses pages into blocks of about equal size, so that no small one
// is left at the end.
func (b *pageBatch) encode(pages []byte, size int, enc *zstd.Encoder) {
	n, perBlock := len(pages)/size, max(1, blockRawBytes/size)
	count := (n + perBlock - 1) / perBlock
	for k := range count {
		from, to := k*n/count, (k+1)*n/count
		start := len(b.blocks)
		b.blocks = encodeBlock(b.blocks, pagesBlock, size, pages[from*size:to*size], enc)
		b.starts = append(b.starts, blockStart{start, len(b.blocks) - start, to - from})
	}
}

// unknown enters the chosen pages in the lease and returns those that have to
// be stored: neither in the index nor claimed by this writer before.
func (w *Writer) unknown(hash []Hash, ask []int) ([]int, error) {
	if len(ask) == 0 {
		return nil, nil
	}
	w.s.leases.mu.RLock()
	defer w.s.leases.mu.RUnlock()
	w.lease.mu.Lock()
	n := 0
	for _, i := range ask {
		if _, ok := w.lease.seen[hash[i]]; !ok {
			w.lease.seen[hash[i]] = struct{}{}
			ask[n] = i
			n++
		}
	}
	w.lease.mu.Unlock()
	ask = ask[:n]
	v := w.s.index.view()
	defer v.discard()
	n = 0
	for _, i := range ask {
		known, err := v.has(hashKey(tableChunk, hash[i]))
		if err != nil {
			return nil, err
		}
		if !known {
			ask[n] = i
			n++
		}
	}
	return ask[:n], nil
}

// collect writes batches to the packs and their hashes to the tree, in order.
func (mw *mapWriter) collect(ctx context.Context, ordered <-chan *pageBatch) error {
	for b := range ordered {
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := mw.store(b); err != nil {
			return err
		}
		leaf := 0
		for i, index := range b.index {
			if b.hash[i] == b.old[i] {
				continue
			}
			mw.stats.PagesChanged++
			for b.leaves[leaf].at != index/fanout {
				leaf++
			}
			mw.tree.old.adopt(b.leaves[leaf])
			if err := mw.tree.put(0, index, b.hash[i]); err != nil {
				return err
			}
		}
		mw.free.Put(b)
	}
	return nil
}

// store appends a batch's blocks.
func (mw *mapWriter) store(b *pageBatch) error {
	if len(b.fresh) == 0 {
		return nil
	}
	w := mw.w
	if err := w.s.needSpace(int64(len(b.blocks)) + 2*w.pending); err != nil {
		return err
	}
	p, off, err := w.s.packs.append(b.blocks, w.held)
	if err != nil {
		return err
	}
	next := 0
	for _, st := range b.starts {
		for slot := range st.count {
			w.chunks = append(w.chunks, pendingChunk{b.fresh[next], location{pack: p.id, offset: off + int64(st.offset), length: st.length, slot: slot}})
			next++
		}
	}
	index := int64(len(b.fresh)) * indexEntryBytes
	w.pending += index
	mw.stats.PagesNew += int64(len(b.fresh))
	mw.stats.BytesNew += int64(len(b.fresh)) * int64(mw.m.PageBytes)
	mw.stats.BytesStored += int64(len(b.blocks)) + index
	return nil
}
