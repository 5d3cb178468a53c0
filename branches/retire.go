package branches

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// enter begins a series of lookups and reads. Packs retired meanwhile stay
// until leave is called, so that a location just looked up can be read.
func (ps *packs) enter() (leave func()) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	epoch := ps.epoch
	ps.readers[epoch]++
	return func() {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if ps.readers[epoch]--; ps.readers[epoch] == 0 {
			delete(ps.readers, epoch)
		}
		if err := ps.sweepLocked(); err != nil && ps.swept != nil {
			ps.swept(err)
		}
	}
}

// retire removes packs the index names no more, now or when the last reader
// that may still look into them leaves. Should it not come to that, the next
// Open finds them without a record.
func (ps *packs) retire(ids []uint64) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, id := range ids {
		ps.retired = append(ps.retired, retiredPack{id, ps.epoch})
	}
	ps.epoch++
	return ps.sweepLocked()
}

type retiredPack struct {
	id    uint64
	epoch int64 // readers of this one and earlier may have locations in it
}

func (ps *packs) sweepLocked() error {
	oldest := ps.epoch
	for e := range ps.readers {
		oldest = min(oldest, e)
	}
	var errs []error
	ps.retired = slices.DeleteFunc(ps.retired, func(r retiredPack) bool {
		if r.epoch >= oldest {
			return false
		}
		if err := ps.fs.remove(ps.path(r.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove pack %d: %w", r.id, err))
			return false
		}
		if p, ok := ps.open[r.id]; ok {
			delete(ps.open, r.id)
			p.gone = true
			if p.refs == 0 {
				_ = p.f.Close()
			}
		}
		return true
	})
	return errors.Join(errs...)
}
