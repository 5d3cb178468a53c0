package branches

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

const (
	// readBytes and readGapBytes shape reads of packs: neighbouring blocks are
	// fetched together, small gaps included.
	readBytes    = 1 << 20
	readGapBytes = 32 << 10
)

// MaterializeOptions tunes [Store.Materialize].
type MaterializeOptions struct {
	// Verify checks the hash of every page. Off on the way of a fork.
	Verify bool
	// Workers bounds parallel decompression; 0 is one per CPU.
	Workers int
}

// want is a page to be read: where it is stored, where it goes, and the leaf
// that knows its hash.
type want struct {
	loc   location
	index int64
	leaf  *node
}

func (w want) hash() Hash { return w.leaf.kids[w.index%fanout] }

// Materialize writes the space into dst as a sparse file: dst is truncated, set
// to SizeBytes, and only non-zero pages are written. It does not sync. A
// missing or unreadable chunk is ErrCorrupt and named; dst is then incomplete.
func (s *Store) Materialize(ctx context.Context, m Map, dst *os.File, o MaterializeOptions) error {
	end, err := s.beginRead(m)
	if err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	defer end()
	workers := o.Workers
	if workers <= 0 {
		workers = defaultWorkers()
	}
	if err := errors.Join(dst.Truncate(0), dst.Truncate(m.SizeBytes)); err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	wants, err := s.locate(ctx, m, workers)
	if err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	jobs := make(chan []want)
	for range workers {
		g.Go(func() error {
			f := newFetcher(s, m.PageBytes)
			defer f.close()
			for job := range jobs {
				if err := f.fetch(job, func(run []want, data []byte) error { return writeRun(dst, m, run, data, o.Verify) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(jobs)
		for job := range readJobs(wants) {
			select {
			case jobs <- job:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	return nil
}

// writeRun writes pages that follow one another in a block and in the space.
func writeRun(dst *os.File, m Map, run []want, data []byte, verify bool) error {
	if verify {
		if err := verifyRun(m, run, data); err != nil {
			return err
		}
	}
	off := run[0].index * int64(m.PageBytes)
	if over := off + int64(len(data)) - m.SizeBytes; over > 0 {
		data = data[:int64(len(data))-over]
	}
	if _, err := dst.WriteAt(data, off); err != nil {
		return err
	}
	return nil
}

func verifyRun(m Map, run []want, data []byte) error {
	for i, w := range run {
		if got := HashPage(data[i*m.PageBytes : (i+1)*m.PageBytes]); got != w.hash() {
			return &CorruptError{Kind: "chunk", Object: w.hash().String(), Reason: fmt.Sprintf("its bytes hash to %s", got)}
		}
	}
	return nil
}

// beginRead starts a call that reads m: the store stays open, gc keeps m, and
// packs that gc replaces stay readable.
func (s *Store) beginRead(maps ...Map) (end func(), err error) {
	done, err := s.begin()
	if err != nil {
		return nil, err
	}
	l := s.leases.start()
	leave := s.packs.enter()
	end = func() {
		leave()
		s.leases.end(l)
		done()
	}
	for _, m := range maps {
		err := m.validate()
		if err == nil {
			err = s.pin(l, m)
		}
		if errors.Is(err, ErrNotFound) { // whoever reads it has a commit that names it
			err = &CorruptError{Kind: "node", Object: m.Root.String(), Reason: "missing"}
		}
		if err != nil {
			end()
			return nil, err
		}
	}
	return end, nil
}

// locate finds where all pages of a map are stored, sorted by place.
func (s *Store) locate(ctx context.Context, m Map, workers int) ([]want, error) {
	g, ctx := errgroup.WithContext(ctx)
	type numbered struct {
		first int64
		leaf  *node
	}
	leaves := make(chan numbered, workers)
	parts := make([][]want, workers)
	for k := range workers {
		g.Go(func() error {
			v := s.index.view()
			defer v.discard()
			for l := range leaves {
				var err error
				if parts[k], err = v.locateLeaf(parts[k], l.first, l.leaf); err != nil {
					return err
				}
			}
			slices.SortFunc(parts[k], compareWants)
			return nil
		})
	}
	g.Go(func() error {
		defer close(leaves)
		return walkLeaves(ctx, s, m, func(first int64, leaf *node) error {
			select {
			case leaves <- numbered{first, leaf}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return mergeSorted(parts), nil
}

// locateLeaf appends the pages of one leaf.
func (v *view) locateLeaf(wants []want, first int64, leaf *node) ([]want, error) {
	leaf.base = nil // not needed to read, and as large as the leaf
	for i := range leaf.kids {
		if leaf.kids[i].IsZero() {
			continue
		}
		loc, ok, err := v.location(tableChunk, leaf.kids[i])
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, &CorruptError{Kind: "chunk", Object: leaf.kids[i].String(), Reason: "missing"}
		}
		wants = append(wants, want{loc, first + int64(i), leaf})
	}
	return wants, nil
}

// location looks up a chunk or blob.
func (v *view) location(table byte, h Hash) (loc location, ok bool, err error) {
	var key [1 + HashBytes]byte
	key[0] = table
	copy(key[1:], h[:])
	ok, err = v.get(key[:], func(val []byte) error {
		var err error
		if loc, err = decodeLocation(val); err != nil {
			return &CorruptError{Kind: "chunk", Object: h.String(), Reason: err.Error()}
		}
		return nil
	})
	return loc, ok, err
}

func compareLocations(a, b location) int {
	return cmp.Or(cmp.Compare(a.pack, b.pack), cmp.Compare(a.offset, b.offset), cmp.Compare(a.slot, b.slot))
}

func compareWants(a, b want) int {
	return cmp.Or(compareLocations(a.loc, b.loc), cmp.Compare(a.index, b.index))
}

func mergeSorted(parts [][]want) []want {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	out := make([]want, 0, n)
	for len(out) < n {
		best := -1
		for k, p := range parts {
			if len(p) > 0 && (best < 0 || compareWants(p[0], parts[best][0]) < 0) {
				best = k
			}
		}
		out = append(out, parts[best][0])
		parts[best] = parts[best][1:]
	}
	return out
}

// readJobs cuts sorted wants into pieces that one read of a pack serves.
func readJobs(wants []want) iter.Seq[[]want] {
	return func(yield func([]want) bool) {
		for len(wants) > 0 {
			first := wants[0].loc
			end := first.offset + int64(first.length)
			n := 1
			for n < len(wants) {
				l := wants[n].loc
				if l.pack != first.pack || l.offset > end+readGapBytes || l.offset+int64(l.length)-first.offset > readBytes {
					break
				}
				end = max(end, l.offset+int64(l.length))
				n++
			}
			if !yield(wants[:n]) {
				return
			}
			wants = wants[n:]
		}
	}
}

// fetcher reads and unpacks blocks for one goroutine.
type fetcher struct {
	s         *Store
	pageBytes int
	dec       *zstd.Decoder
	in, raw   []byte
}

func newFetcher(s *Store, pageBytes int) *fetcher {
	return &fetcher{s: s, pageBytes: pageBytes, dec: decoders.Get().(*zstd.Decoder)}
}

func (f *fetcher) close() { decoders.Put(f.dec) }

// fetch reads what a job asks for in one go and calls emit with runs of pages
// that follow one another both in their block and in the space. data is valid
// during the call.
func (f *fetcher) fetch(job []want, emit func(run []want, data []byte) error) error {
	start, end := job[0].loc.offset, int64(0)
	for _, w := range job {
		end = max(end, w.loc.offset+int64(w.loc.length))
	}
	f.in = slices.Grow(f.in[:0], int(end-start))[:end-start]
	if err := f.read(job[0].loc.pack, f.in, start); err != nil {
		return f.corrupt(job[0], err)
	}
	for len(job) > 0 {
		at := job[0].loc
		n := 1
		for n < len(job) && job[n].loc.offset == at.offset {
			n++
		}
		block := f.in[at.offset-start:][:at.length]
		h, raw, err := decodeBlock(f.raw, block, f.dec)
		if err != nil {
			return f.corrupt(job[0], err)
		}
		f.raw = raw
		if h.kind != pagesBlock || h.unit != f.pageBytes {
			return f.corrupt(job[0], fmt.Errorf("block of kind %d with units of %d bytes where pages of %d belong", h.kind, h.unit, f.pageBytes))
		}
		if err := f.emitRuns(job[:n], h, raw, emit); err != nil {
			return err
		}
		job = job[n:]
	}
	return nil
}

func (f *fetcher) emitRuns(pages []want, h blockHeader, raw []byte, emit func([]want, []byte) error) error {
	for len(pages) > 0 {
		slot := pages[0].loc.slot
		n := 1
		for n < len(pages) && pages[n].loc.slot == slot+n && pages[n].index == pages[0].index+int64(n) {
			n++
		}
		if slot+n > h.count {
			return f.corrupt(pages[0], fmt.Errorf("page %d of a block of %d", slot+n-1, h.count))
		}
		if err := emit(pages[:n], raw[slot*h.unit:(slot+n)*h.unit]); err != nil {
			return err
		}
		pages = pages[n:]
	}
	return nil
}

func (f *fetcher) read(id uint64, dst []byte, off int64) error { return f.s.packs.readAt(id, dst, off) }

// corrupt names the first page an unreadable block was wanted for.
func (f *fetcher) corrupt(w want, err error) error {
	if errors.Is(err, os.ErrClosed) {
		return err
	}
	return &CorruptError{Kind: "chunk", Object: w.hash().String(), Reason: fmt.Sprintf("in pack %d at %d: %v", w.loc.pack, w.loc.offset, err)}
}

// Pages yields the non-zero pages, ascending. Data is valid until the next step.
func (s *Store) Pages(ctx context.Context, m Map) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		end, err := s.beginRead(m)
		if err != nil {
			yield(Page{}, fmt.Errorf("read pages: %w", err))
			return
		}
		defer end()
		buf := make([]byte, fanout*m.PageBytes)
		err = walkLeaves(ctx, s, m, func(first int64, leaf *node) error {
			if err := s.readLeaf(ctx, m, first, leaf, buf); err != nil {
				return err
			}
			for i := range leaf.kids {
				if leaf.kids[i].IsZero() {
					continue
				}
				if !yield(Page{first + int64(i), buf[i*m.PageBytes : (i+1)*m.PageBytes]}, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Page{}, fmt.Errorf("read pages: %w", err))
		}
	}
}

// readLeaf fills buf with all pages of a leaf.
func (s *Store) readLeaf(ctx context.Context, m Map, first int64, leaf *node, buf []byte) error {
	v := s.index.view()
	wants, err := v.locateLeaf(nil, first, leaf)
	v.discard()
	if err != nil {
		return err
	}
	slices.SortFunc(wants, compareWants)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(defaultWorkers())
	for job := range readJobs(wants) {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			f := newFetcher(s, m.PageBytes)
			defer f.close()
			return f.fetch(job, func(run []want, data []byte) error {
				copy(buf[(run[0].index-first)*int64(m.PageBytes):], data)
				return nil
			})
		})
	}
	return g.Wait()
}

// Blob reads what [Writer.WriteBlob] wrote; its hash is verified.
func (s *Store) Blob(ctx context.Context, id Hash) ([]byte, error) {
	end, err := s.beginRead()
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id.Short(), err)
	}
	defer end()
	data, err := s.blob(id)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id.Short(), err)
	}
	return data, nil
}

func (s *Store) blob(id Hash) ([]byte, error) {
	v := s.index.view()
	loc, ok, err := v.location(tableBlob, id)
	v.discard()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrNotFound
	}
	bad := func(why error) error {
		return &CorruptError{Kind: "blob", Object: id.String(), Reason: fmt.Sprintf("in pack %d at %d: %v", loc.pack, loc.offset, why)}
	}
	block := make([]byte, loc.length)
	if err := s.packs.readAt(loc.pack, block, loc.offset); err != nil {
		return nil, bad(err)
	}
	dec := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(dec)
	h, raw, err := decodeBlock(nil, block, dec)
	if err != nil {
		return nil, bad(err)
	}
	if got := blobDomain.sum(raw); h.kind != blobBlock || got != id {
		return nil, bad(fmt.Errorf("it holds %s", got))
	}
	return bytes.Clone(raw), nil
}
