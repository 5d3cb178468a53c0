package branches

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// stored is an index entry to be held against what is in its pack.
type stored struct {
	hash Hash
	loc  location
	blob bool
}

// bodies checks packs against their records and every indexed body against its
// hash.
func (c *checker) bodies(ctx context.Context, skip bool) error {
	records, err := c.s.packRecords()
	if err != nil {
		return err
	}
	byPack := map[uint64][]stored{}
	for _, table := range []byte{tableChunk, tableBlob} {
		err := c.v.scan([]byte{table}, func(key, val []byte) error {
			h, err := keyHash(key)
			if err != nil {
				c.problem("chunk", fmt.Sprintf("%x", key), "%v", err)
				return nil
			}
			kind := "chunk"
			if table == tableBlob {
				kind = "blob"
				c.report.Blobs++
			} else {
				c.report.Chunks++
			}
			loc, err := decodeLocation(val)
			if err != nil {
				c.problemAt(kind, h, "%v", err)
				return nil
			}
			if size, ok := records[loc.pack]; !ok || loc.offset+int64(loc.length) > size {
				c.problemAt(kind, h, "in pack %d at %d: beyond what is recorded of it (%d bytes)", loc.pack, loc.offset, size)
				return nil
			}
			byPack[loc.pack] = append(byPack[loc.pack], stored{h, loc, table == tableBlob})
			return nil
		})
		if err != nil {
			return err
		}
	}
	_, sizes, err := c.s.packs.list()
	if err != nil {
		return err
	}
	c.report.Packs = len(records)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(defaultWorkers())
	for id, size := range records {
		have, ok := sizes[id]
		switch {
		case !ok:
			c.problem("pack", packName(id), "missing")
		case have < size:
			c.problem("pack", packName(id), "%d bytes, %d were written", have, size)
		}
		entries := byPack[id]
		if !ok {
			for _, e := range entries {
				c.problemAt(kindOf(e), e.hash, "its pack is missing")
			}
			continue
		}
		if skip {
			continue
		}
		slices.SortFunc(entries, func(a, b stored) int { return compareLocations(a.loc, b.loc) })
		g.Go(func() error { return c.pack(ctx, id, min(size, have), entries) })
	}
	return g.Wait()
}

func kindOf(e stored) string {
	if e.blob {
		return "blob"
	}
	return "chunk"
}

// pack reads a whole pack, block by block, and checks what the index says is in
// each of them.
func (c *checker) pack(ctx context.Context, id uint64, size int64, entries []stored) error {
	f := newFetcher(c.s, 0)
	defer f.close()
	var head [packHeaderBytes]byte
	if err := c.s.packs.readAt(id, head[:], 0); err != nil {
		c.problem("pack", packName(id), "%v", err)
	} else if err := checkPackHeader(head[:], id); err != nil {
		c.problem("pack", packName(id), "%v", err)
	}
	off := int64(packHeaderBytes)
	for off < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, raw, err := f.whole(id, off, size)
		if err != nil {
			c.problem("pack", packName(id), "block at %d: %v", off, err)
			// Without this block's length the next one is where the index says.
			off = c.skip(&entries, off, size)
			continue
		}
		c.mu.Lock()
		c.report.Bytes += int64(h.length())
		c.mu.Unlock()
		for len(entries) > 0 && entries[0].loc.offset < off+int64(h.length()) {
			e := entries[0]
			entries = entries[1:]
			if why := checkBody(e, off, h, raw); why != "" {
				c.problemAt(kindOf(e), e.hash, "in pack %d at %d: %s", id, e.loc.offset, why)
			}
		}
		off += int64(h.length())
	}
	for _, e := range entries {
		c.problemAt(kindOf(e), e.hash, "in pack %d at %d: beyond its end", id, e.loc.offset)
	}
	return nil
}

// skip gives up the entries of the block at off and returns where to go on.
func (c *checker) skip(entries *[]stored, off, size int64) int64 {
	for len(*entries) > 0 {
		e := (*entries)[0]
		if e.loc.offset > off {
			return e.loc.offset
		}
		c.problemAt(kindOf(e), e.hash, "in pack %d at %d: its block cannot be read", e.loc.pack, e.loc.offset)
		*entries = (*entries)[1:]
	}
	return size
}

func checkBody(e stored, off int64, h blockHeader, raw []byte) string {
	switch {
	case e.loc.offset != off || e.loc.length != h.length():
		return "no block begins there, or one of another length"
	case e.blob != (h.kind == blobBlock):
		return "a block of another kind"
	case e.blob:
		if got := blobDomain.sum(raw); got != e.hash {
			return fmt.Sprintf("its bytes hash to %s", got)
		}
	case e.loc.slot >= h.count:
		return fmt.Sprintf("page %d of a block of %d", e.loc.slot, h.count)
	default:
		if got := HashPage(raw[e.loc.slot*h.unit : (e.loc.slot+1)*h.unit]); got != e.hash {
			return fmt.Sprintf("its bytes hash to %s", got)
		}
	}
	return ""
}

// whole reads and unpacks the block at off. Both results are valid until the
// next call.
func (f *fetcher) whole(id uint64, off, size int64) (blockHeader, []byte, error) {
	var head [blockHeaderBytes]byte
	if off+blockHeaderBytes > size {
		return blockHeader{}, nil, errTruncated
	}
	if err := f.s.packs.readAt(id, head[:], off); err != nil {
		return blockHeader{}, nil, err
	}
	h, err := decodeBlockHeader(head[:])
	if err != nil {
		return h, nil, err
	}
	if off+int64(h.length()) > size {
		return h, nil, errTruncated
	}
	f.in = slices.Grow(f.in[:0], h.length())[:h.length()]
	if err := f.s.packs.readAt(id, f.in, off); err != nil {
		return h, nil, err
	}
	h, raw, err := decodeBlock(f.raw, f.in, f.dec)
	if err == nil {
		f.raw = raw
	}
	return h, raw, err
}
