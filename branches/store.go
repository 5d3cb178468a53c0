package branches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options for Open. Only Dir is needed.
type Options struct {
	Dir string
	// Wait is how long to wait for another process to release the store.
	Wait   time.Duration
	Logger *slog.Logger     // nil: discard
	Now    func() time.Time // nil: time.Now

	fs     fsys // nil: the operating system's
	faults *faults
}

// Store is an open store. Its methods are safe for concurrent use.
type Store struct {
	dir   string
	log   *slog.Logger
	now   func() time.Time
	free  func(dir string) (int64, error)
	fs    fsys
	lock  *os.File
	index *index
	packs *packs

	// life counts calls under way. It is no RWMutex: a caller's loop over pages
	// may make other calls, which must not wait for a Close that waits for it.
	life struct {
		sync.Mutex
		calls  sync.WaitGroup
		closed bool
	}

	// flush orders what writers make durable, so that recorded pack lengths
	// only grow and a node is stored once.
	flush sync.Mutex
	// update orders transactions that change refs.
	update sync.Mutex
	// collecting lets one gc run at a time.
	collecting sync.Mutex

	leases leases
	// collections counts executed collections.
	collections atomic.Int64
}

// Open opens the store at o.Dir and creates it when the directory is missing or
// empty. One process at a time has a store open: Open waits up to o.Wait, then
// returns a [LockError]. It repairs what a crash left (a pack's unfinished tail).
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	s := &Store{dir: o.Dir, log: o.Logger, now: o.Now, fs: o.fs, free: freeBytes}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.fs == nil {
		s.fs = osFS{}
	}
	if o.Dir == "" {
		return nil, errors.New("open store: no directory given")
	}
	s.leases.init()
	if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(o.Dir), 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		if err := makeDir(s.fs, o.Dir); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if s.lock, err = lockDir(ctx, o.Dir, o.Wait); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	fresh, err := checkFormat(o.Dir)
	if err != nil {
		return nil, err
	}
	if err := useReserve(o.Dir); err != nil {
		return nil, err
	}
	roomy, err := roomToMerge(o.Dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"index", "packs"} {
		if err := makeDir(s.fs, filepath.Join(o.Dir, sub)); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if s.index, err = openIndex(filepath.Join(o.Dir, "index"), indexOptions{log: s.log, faults: o.faults, roomy: roomy}); err != nil {
		return nil, err
	}
	if err := s.markIndex(fresh); err != nil {
		return nil, err
	}
	if err := s.openPacks(); err != nil {
		return nil, err
	}
	if fresh {
		if err := writeFormat(o.Dir); err != nil {
			return nil, err
		}
	}
	s.reserve()
	return s, nil
}

// markIndex puts a mark into a new store's index and looks for it in any other.
// Without it an index that was lost would come back empty, and the packs, of
// which it knows nothing then, would be taken for what a crash left.
func (s *Store) markIndex(fresh bool) error {
	v := s.index.view()
	marked, err := v.has(formatKey)
	v.discard()
	switch {
	case err != nil || marked:
		return err
	case !fresh:
		return &CorruptError{Kind: "index", Object: filepath.Join(s.dir, "index"), Reason: "it is not the one the store was made with"}
	}
	return s.index.atomically("create", func(tx *change) error { return tx.set(formatKey, []byte{formatVersion}) })
}

func (s *Store) openPacks() error {
	durable, err := s.packRecords()
	if err != nil {
		return err
	}
	ps, notes, err := openPacks(s.fs, filepath.Join(s.dir, "packs"), durable)
	if err != nil {
		return err
	}
	s.packs = ps
	ps.swept = func(err error) { s.log.Warn("cannot remove a collected pack", "store", s.dir, "error", err) }
	for _, n := range notes {
		s.log.Info("repaired after a crash", "store", s.dir, "what", n)
	}
	newest := uint64(0)
	for id := range durable {
		newest = max(newest, id)
	}
	if newest == 0 {
		return nil
	}
	return ps.resume(newest, durable[newest])
}

// packRecords reads the durable length of every pack.
func (s *Store) packRecords() (map[uint64]int64, error) {
	v := s.index.view()
	defer v.discard()
	out := map[uint64]int64{}
	err := v.scan([]byte{tablePack}, func(key, val []byte) error {
		if len(key) != 9 {
			return &CorruptError{Kind: "pack", Object: fmt.Sprintf("%q", key), Reason: "malformed key"}
		}
		id := packKeyID(key)
		n, err := decodePackRecord(val)
		if err != nil {
			return &CorruptError{Kind: "pack", Object: packName(id), Reason: err.Error()}
		}
		out[id] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read pack records: %w", err)
	}
	return out, nil
}

// begin keeps the store open for one call; the caller calls end.
func (s *Store) begin() (end func(), err error) {
	s.life.Lock()
	defer s.life.Unlock()
	if s.life.closed {
		return nil, fmt.Errorf("use store: %w", ErrClosed)
	}
	s.life.calls.Add(1)
	return s.life.calls.Done, nil
}

// Close waits for calls under way and releases the store. Idempotent.
func (s *Store) Close() error {
	s.life.Lock()
	closed := s.life.closed
	s.life.closed = true
	s.life.Unlock()
	s.life.calls.Wait()
	if closed {
		return nil
	}
	if err := s.release(); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// release lets go of everything Open took, in reverse.
func (s *Store) release() error {
	var errs []error
	if s.packs != nil {
		errs = append(errs, s.packs.close())
	}
	if s.index != nil {
		errs = append(errs, s.closeIndex())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// abandon releases a store whose directory is another's by now, if anybody's. To
// close the index would be to write and remove files by names that are no longer
// its own, so it stays as it is in this process, with nothing to do.
func (s *Store) abandon() error {
	s.life.Lock()
	s.life.closed = true
	s.life.Unlock()
	s.life.calls.Wait()
	err := fmt.Errorf("close store: %s was moved or removed while it was open", s.dir)
	return errors.Join(err, s.packs.close(), s.lock.Close())
}

// closeIndex closes the index, which writes its memtable out. Should there be
// no room for that even with the reserve given back, the index stays as it is
// in this process, which is about to end or to close a store for good: all of
// it is in its log already, from which the next Open takes it.
func (s *Store) closeIndex() error {
	if err := useReserve(s.dir); err != nil {
		s.log.Warn("index is left to its log", "store", s.dir, "error", err)
		return nil
	}
	err := s.index.close()
	s.reserve()
	return err
}

// reserve sets blocks aside; a store without is one that is worse off on a full
// disk, no more.
func (s *Store) reserve() {
	if err := keepReserve(s.dir); err != nil {
		s.log.Warn("cannot keep a reserve for a full disk", "store", s.dir, "error", err)
	}
}
