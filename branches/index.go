package branches

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	badger "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

const (
	// memtableBytes is small because most processes live for one command: it
	// is zeroed at open, written out at close, and its log is a file of twice
	// that size whose blocks must be available (space.go).
	memtableBytes = 4 << 20
	// maxValueBytes bounds one value (Badger wants it well under a memtable).
	maxValueBytes = 256 << 10
	// indexEntryBytes is what one chunk adds to the index, measured: the key,
	// a location, and the table's share.
	indexEntryBytes = 62
)

// index is the store's Badger database. Bodies are never in it, so values stay
// in the LSM tree and the value log stays empty.
type index struct {
	db   *badger.DB
	dir  string
	opts indexOptions
	gets atomic.Int64 // lookups so far, for tests that count reads
	// wrote: there is something in the memtable, which closing writes out.
	wrote atomic.Bool
}

// maxFreshTables is how many tables not merged with the others are put up with.
// Every command that writes leaves one, and every lookup goes through all.
const maxFreshTables = 12

// indexOptions say how to open the database.
type indexOptions struct {
	log    *slog.Logger
	faults *faults
	// roomy: there is space to write all tables anew. Otherwise none are merged.
	roomy bool
	// mergeOnClose merges fresh tables into the others at close.
	mergeOnClose bool
}

// dropUnborn removes the logs that a process that was killed had made and given
// no size yet. There is nothing in them, and Badger refuses to open a directory
// that has one.
func dropUnborn(dir string) error {
	for _, pattern := range []string{"*.vlog", "*.mem"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			st, err := os.Lstat(name)
			if err == nil && st.Mode().IsRegular() && st.Size() == 0 {
				err = os.Remove(name)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("open index %s: %w", dir, err)
			}
		}
	}
	return nil
}

func openIndex(dir string, io indexOptions) (*index, error) {
	l := &badgerLog{log: io.log}
	o := badger.DefaultOptions(dir).
		WithLogger(l).
		WithMetricsEnabled(false).
		WithBypassLockGuard(true). // the store's own lock covers it
		WithSyncWrites(true).
		WithDetectConflicts(false). // the store serializes what must not interleave
		WithMemTableSize(memtableBytes).
		WithNumMemtables(2).
		WithValueThreshold(maxValueBytes).
		WithValueLogFileSize(1 << 20).
		// Hashes do not compress, and without compression no block cache is
		// needed: tables are mapped.
		WithCompression(options.None).
		WithBlockCacheSize(0).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithNumCompactors(2).
		WithNumLevelZeroTables(maxFreshTables).
		WithNumLevelZeroTablesStall(3 * maxFreshTables).
		WithCompactL0OnClose(io.mergeOnClose)
	if !io.roomy {
		o = o.WithNumCompactors(0)
	}
	if err := dropUnborn(dir); err != nil {
		return nil, err
	}
	db, err := badger.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open index %s: %w", dir, err)
	}
	if bad := l.ignored.Load(); bad != nil {
		// Badger leaves out a table it cannot read; for a store that is lost data.
		return nil, errors.Join(&CorruptError{Kind: "index", Object: dir, Reason: *bad}, db.Close())
	}
	return &index{db: db, dir: dir, opts: io}, nil
}

// close writes the memtable out. A short-lived process gives Badger no time to
// merge tables beside its work, so every so many times that is done here.
func (ix *index) close() error {
	fresh := 1
	for _, t := range ix.db.Tables() {
		if t.Level == 0 {
			fresh++
		}
	}
	if err := ix.db.Close(); err != nil {
		return fmt.Errorf("close index: %w", err)
	}
	if fresh <= maxFreshTables || !ix.opts.roomy || ix.opts.mergeOnClose {
		return nil
	}
	again := ix.opts
	again.mergeOnClose = true
	merging, err := openIndex(ix.dir, again)
	if err != nil {
		return err
	}
	return merging.close()
}

// bytes is the size of the tables on disk.
func (ix *index) bytes() int64 {
	n := int64(0)
	for _, t := range ix.db.Tables() { // Size() is up to a minute old
		n += int64(t.OnDiskSize)
	}
	return n
}

// view starts a read transaction; the caller discards it.
func (ix *index) view() *view { return &view{txn: ix.db.NewTransaction(false), ix: ix} }

// view reads a consistent picture of the index. Not safe for concurrent use.
type view struct {
	txn *badger.Txn
	ix  *index
}

func (v *view) discard() { v.txn.Discard() }

// get calls fn with the value of key, which is valid during fn only. It
// reports whether there is one.
func (v *view) get(key []byte, fn func(val []byte) error) (bool, error) {
	v.ix.gets.Add(1)
	item, err := v.txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	if fn == nil {
		return true, nil
	}
	if err := item.Value(fn); err != nil {
		return true, err
	}
	return true, nil
}

func (v *view) has(key []byte) (bool, error) { return v.get(key, nil) }

// scan calls fn for every key of a prefix, ascending. Key and value are valid
// during fn only; fn returns errStop to end without error.
func (v *view) scan(prefix []byte, fn func(key, val []byte) error) error {
	o := badger.DefaultIteratorOptions
	o.Prefix = prefix
	o.PrefetchValues = false // values lie beside the keys
	it := v.txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		if err := item.Value(func(val []byte) error { return fn(item.Key(), val) }); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
	}
	return nil
}

// scanKeys is scan without values.
func (v *view) scanKeys(prefix []byte, fn func(key []byte) error) error {
	o := badger.DefaultIteratorOptions
	o.Prefix = prefix
	o.PrefetchValues = false
	it := v.txn.NewIterator(o)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		if err := fn(it.Item().Key()); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
	}
	return nil
}

// last returns the greatest key of a prefix, nil when there is none.
func (v *view) last(prefix []byte) []byte {
	o := badger.DefaultIteratorOptions
	o.Reverse = true
	o.PrefetchValues = false
	it := v.txn.NewIterator(o)
	defer it.Close()
	it.Seek(append(append([]byte(nil), prefix...), 0xff))
	if !it.ValidForPrefix(prefix) {
		return nil
	}
	return it.Item().KeyCopy(nil)
}

var errStop = errors.New("stop")

// atomically runs fn in one transaction that reads its own writes: all of it
// is durable when atomically returns nil, none of it otherwise.
func (ix *index) atomically(step string, fn func(tx *change) error) error {
	txn := ix.db.NewTransaction(true)
	defer txn.Discard()
	tx := &change{view: view{txn: txn, ix: ix}}
	if err := fn(tx); err != nil {
		return err
	}
	if err := ix.opts.faults.at(step); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	ix.wrote.Store(true)
	if err := txn.Commit(); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return ix.opts.faults.after(step)
}

// change is a transaction being built.
type change struct{ view }

func (c *change) set(key, val []byte) error {
	if err := c.txn.Set(key, val); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

func (c *change) delete(key []byte) error {
	if err := c.txn.Delete(key); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

// batch writes many keys in the order given, durable when flush returns. It is
// not atomic: after a crash a prefix of it is there.
type batch struct {
	wb   *badger.WriteBatch
	ix   *index
	step string
}

func (ix *index) batch(step string) *batch {
	return &batch{wb: ix.db.NewWriteBatch(), ix: ix, step: step}
}

func (b *batch) set(key, val []byte) error {
	if err := b.wb.Set(key, val); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

func (b *batch) delete(key []byte) error {
	if err := b.wb.Delete(key); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

func (b *batch) flush() error {
	if err := b.ix.opts.faults.at(b.step); err != nil {
		b.wb.Cancel()
		return fmt.Errorf("write index: %w", err)
	}
	b.ix.wrote.Store(true)
	if err := b.wb.Flush(); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return b.ix.opts.faults.after(b.step)
}

func (b *batch) cancel() { b.wb.Cancel() }

// compact gives the space of deleted keys back to the file system. Nobody may
// write meanwhile.
func (ix *index) compact() error {
	// Flatten sees tables only; dropping a prefix is Badger's way of writing
	// the memtable out first, and it does so only when the prefix exists.
	scratch := []byte{tableDiscarded}
	if err := ix.db.Update(func(txn *badger.Txn) error { return txn.Set(scratch, nil) }); err != nil {
		return fmt.Errorf("compact index: %w", err)
	}
	if err := ix.db.DropPrefix(scratch); err != nil {
		return fmt.Errorf("compact index: %w", err)
	}
	if err := ix.db.Flatten(2); err != nil {
		return fmt.Errorf("compact index: %w", err)
	}
	return nil
}

// badgerLog passes Badger's remarks on, as detail: what matters comes back as
// an error, save for the one case it catches here. Its warnings are nothing to
// act on: "Unable to fill tables" is that two compactors wanted the same ones.
type badgerLog struct {
	log     *slog.Logger
	ignored atomic.Pointer[string]
}

func (l *badgerLog) Errorf(f string, a ...any) {
	msg := strings.TrimSpace(fmt.Sprintf(f, a...))
	if strings.HasPrefix(msg, "Ignoring table") {
		l.ignored.CompareAndSwap(nil, &msg)
	}
	l.log.Warn("index", "message", msg)
}

func (l *badgerLog) Warningf(f string, a ...any) {
	l.log.Debug("index", "message", strings.TrimSpace(fmt.Sprintf(f, a...)))
}
func (l *badgerLog) Infof(f string, a ...any)  {}
func (l *badgerLog) Debugf(f string, a ...any) {}
