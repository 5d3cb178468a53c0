package branches

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Usage is the space a store takes.
type Usage struct {
	Commits, Branches, Tags int64
	Nodes, Chunks, Blobs    int64
	Packs                   int
	PackBytes               int64 // compressed bodies, dead ones included
	DeadBytes               int64 // about what of PackBytes nothing in the index names
	IndexBytes              int64 // files of the index
	ReserveBytes            int64 // kept for a full disk
}

// Usage counts what is stored.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	end, err := s.beginRead()
	if err != nil {
		return Usage{}, err
	}
	defer end()
	v := s.index.view()
	defer v.discard()
	var u Usage
	for _, t := range []struct {
		prefix []byte
		n      *int64
	}{
		{[]byte{tableCommit}, &u.Commits},
		{refKey(branchPrefix), &u.Branches},
		{refKey(tagPrefix), &u.Tags},
		{[]byte{tableNode}, &u.Nodes},
		{[]byte{tableBase}, &u.Nodes},
		{[]byte{tableChunk}, &u.Chunks},
		{[]byte{tableBlob}, &u.Blobs},
	} {
		if err := v.scanKeys(t.prefix, func([]byte) error { *t.n++; return ctx.Err() }); err != nil {
			return Usage{}, fmt.Errorf("count objects: %w", err)
		}
	}
	packs, err := s.packUsage(ctx, v, nil, nil)
	if err != nil {
		return Usage{}, fmt.Errorf("count packs: %w", err)
	}
	for _, p := range packs {
		u.Packs++
		u.PackBytes += p.size
		if !p.damaged {
			u.DeadBytes += p.waste()
		}
	}
	if u.IndexBytes, err = diskBytes(filepath.Join(s.dir, "index")); err != nil {
		return Usage{}, fmt.Errorf("count index: %w", err)
	}
	if u.ReserveBytes, err = diskBytes(filepath.Join(s.dir, reserveName)); err != nil {
		return Usage{}, fmt.Errorf("count reserve: %w", err)
	}
	return u, nil
}

// diskBytes is what the files under a path occupy; holes do not count.
func diskBytes(root string) (int64, error) {
	n := int64(0)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		n += allocated(info)
		return nil
	})
	return n, err
}
