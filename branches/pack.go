package branches

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	packHeaderBytes = 24
	packVersion     = 1
	// packBytes is where a new pack is begun.
	packBytes = 256 << 20
	// maxOpenPacks is how many descriptors are kept for reading.
	maxOpenPacks = 64
)

var packMagic = [8]byte{'S', 'I', 'E', 'T', 'C', 'H', 'P', 'K'}

func packName(id uint64) string { return fmt.Sprintf("%08d.pack", id) }

func parsePackName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ".pack")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 62)
	return id, err == nil && packName(id) == name
}

func encodePackHeader(id uint64) []byte {
	b := append([]byte(nil), packMagic[:]...)
	b = binary.LittleEndian.AppendUint32(b, packVersion)
	b = binary.LittleEndian.AppendUint64(b, id)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

func checkPackHeader(b []byte, id uint64) error {
	want := encodePackHeader(id)
	switch {
	case len(b) < packHeaderBytes:
		return errTruncated
	case [8]byte(b[:8]) != packMagic:
		return errors.New("no magic number")
	case binary.LittleEndian.Uint32(b[20:]) != checksum(b[:20]):
		return errors.New("header checksum mismatch")
	case binary.LittleEndian.Uint32(b[8:]) != packVersion:
		return fmt.Errorf("%w: pack version %d, want %d", ErrFormat, binary.LittleEndian.Uint32(b[8:]), packVersion)
	case [packHeaderBytes]byte(b) != [packHeaderBytes]byte(want):
		return errors.New("header names another pack")
	}
	return nil
}

// packs is the directory of pack files. Blocks are appended to the newest one,
// and a pack is never changed otherwise, save that an unfinished tail is cut.
type packs struct {
	fs  fsys
	dir string

	mu     sync.Mutex
	next   uint64 // id of the next pack to create
	active *pack  // being appended to; nil until the first append
	open   map[uint64]*pack
	limit  int64 // size at which the next pack is begun

	epoch   int64
	readers map[int64]int // readers by the epoch they entered in
	retired []retiredPack
	swept   func(error) // told what went wrong with a late removal

	reads     atomic.Int64 // reads so far, for tests that count
	readBytes atomic.Int64
}

// pack is one open pack file. All fields but f are guarded by packs.mu.
type pack struct {
	id   uint64
	f    file
	refs int // readers and writers, plus one while active
	// writers have blocks in it that are in no index yet: gc keeps off.
	writers int
	size    int64 // bytes written, whole blocks; active packs only
	// synced is how much of size is durable. failed is set when fsync failed:
	// what the kernel kept then is unknown, so nothing in it may be indexed.
	synced int64
	isNew  bool // its name is not durable yet
	failed error
	gone   bool // removed by gc; closed with the last reader
}

// openPacks brings the directory in line with the index: durable holds the
// recorded length of every pack. A file without a record was never referenced
// and goes; bytes behind the recorded length are a crash's and are cut off; a
// file that is missing or short is left to readers and fsck to report.
func openPacks(fsy fsys, dir string, durable map[uint64]int64) (*packs, []string, error) {
	ps := &packs{fs: fsy, dir: dir, next: 1, open: map[uint64]*pack{}, limit: packBytes, readers: map[int64]int{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list packs: %w", err)
	}
	var notes []string
	for id := range durable {
		ps.next = max(ps.next, id+1)
	}
	for _, e := range entries {
		id, ok := parsePackName(e.Name())
		if !ok {
			continue
		}
		ps.next = max(ps.next, id+1)
		size, ok := durable[id]
		if !ok {
			if err := fsy.remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, nil, fmt.Errorf("remove unfinished pack: %w", err)
			}
			notes = append(notes, fmt.Sprintf("removed pack %d, which no commit got to use", id))
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, nil, fmt.Errorf("list packs: %w", err)
		}
		if info.Size() > size {
			if err := ps.cut(id, size); err != nil {
				return nil, nil, err
			}
			notes = append(notes, fmt.Sprintf("cut %d unfinished bytes off pack %d", info.Size()-size, id))
		}
	}
	return ps, notes, nil
}

func (ps *packs) path(id uint64) string { return filepath.Join(ps.dir, packName(id)) }

func (ps *packs) cut(id uint64, size int64) (err error) {
	f, err := ps.fs.open(ps.path(id))
	if err != nil {
		return fmt.Errorf("cut pack %d: %w", id, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("cut pack %d: %w", id, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("cut pack %d: %w", id, err)
	}
	return nil
}

// resume makes the newest pack the one to append to, when it has room and is
// as long as the index says.
func (ps *packs) resume(id uint64, durable int64) error {
	if durable >= ps.limit {
		return nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, err := ps.acquireLocked(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // fsck's business
	}
	if err != nil {
		return err
	}
	info, err := p.f.Stat()
	if err != nil || info.Size() != durable {
		ps.releaseLocked(p)
		return err
	}
	p.size, p.synced = durable, durable
	ps.active = p
	return nil
}

// append writes whole blocks and returns the pack they went to and the offset
// of the first. On error nothing of them is there. The pack is held for the
// caller and entered in held; letGo ends that.
func (ps *packs) append(blocks []byte, held map[*pack]struct{}) (*pack, int64, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.active == nil || ps.active.failed != nil || ps.active.size > packHeaderBytes && ps.active.size+int64(len(blocks)) > ps.limit {
		if err := ps.rotateLocked(); err != nil {
			return nil, 0, err
		}
	}
	p := ps.active
	off := p.size
	if err := writeFull(p.f, blocks, off); err != nil {
		// Give back what a full disk took of the block. Should that fail, the
		// next block is written over it all the same.
		return nil, 0, errors.Join(fmt.Errorf("write pack %d: %w", p.id, err), p.f.Truncate(off))
	}
	p.size += int64(len(blocks))
	if _, ok := held[p]; !ok {
		held[p] = struct{}{}
		p.refs++
		p.writers++
	}
	return p, off, nil
}

// position is how far all packs together have been written, as far as that can
// be told from the newest: a clock that ticks in bytes.
func (ps *packs) position() int64 {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.active == nil {
		return int64(ps.next) * packBytes
	}
	return int64(ps.active.id)*packBytes + ps.active.size
}

// rotateLocked ends the active pack and begins a new one.
func (ps *packs) rotateLocked() error {
	id := ps.next
	name := ps.path(id)
	f, err := ps.fs.create(name)
	if err != nil {
		return fmt.Errorf("create pack %d: %w", id, err)
	}
	if err := writeFull(f, encodePackHeader(id), 0); err != nil {
		return errors.Join(fmt.Errorf("write pack %d: %w", id, err), f.Close(), ps.fs.remove(name))
	}
	ps.next++
	old := ps.active
	ps.active = &pack{id: id, f: f, refs: 1, size: packHeaderBytes, isNew: true}
	ps.open[id] = ps.active
	if old != nil {
		ps.releaseLocked(old)
	}
	return nil
}

// seal ends the active pack, so that gc may rewrite it.
func (ps *packs) seal() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.active != nil {
		ps.releaseLocked(ps.active)
		ps.active = nil
	}
}

// sync makes p durable and returns its durable length. The caller holds the
// pack and the store's flush lock, so that recorded lengths only grow.
func (ps *packs) sync(p *pack) (int64, error) {
	ps.mu.Lock()
	size, synced, isNew, failed := p.size, p.synced, p.isNew, p.failed
	ps.mu.Unlock()
	if failed != nil {
		return 0, failed
	}
	if size == synced {
		return size, nil
	}
	err := p.f.Sync()
	if err == nil && isNew {
		err = ps.fs.syncDir(ps.dir)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if err != nil {
		p.failed = fmt.Errorf("sync pack %d: %w", p.id, err)
		return 0, p.failed
	}
	p.synced, p.isNew = size, false
	return size, nil
}

// letGo releases what append held, after it was indexed or given up.
func (ps *packs) letGo(held map[*pack]struct{}) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := range held {
		p.writers--
		ps.releaseLocked(p)
	}
	clear(held)
}

func (ps *packs) release(p *pack) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.releaseLocked(p)
}

func (ps *packs) acquire(id uint64) (*pack, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.acquireLocked(id)
}

func (ps *packs) acquireLocked(id uint64) (*pack, error) {
	if p, ok := ps.open[id]; ok {
		p.refs++
		return p, nil
	}
	f, err := ps.fs.open(ps.path(id))
	if err != nil {
		return nil, fmt.Errorf("open pack %d: %w", id, err)
	}
	var head [packHeaderBytes]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, errors.Join(&CorruptError{Kind: "pack", Object: packName(id), Reason: fmt.Sprintf("read header: %v", err)}, f.Close())
	}
	if err := checkPackHeader(head[:], id); err != nil {
		return nil, errors.Join(&CorruptError{Kind: "pack", Object: packName(id), Reason: err.Error()}, f.Close())
	}
	p := &pack{id: id, f: f, refs: 1}
	ps.open[id] = p
	return p, nil
}

func (ps *packs) releaseLocked(p *pack) {
	p.refs--
	if p.refs > 0 {
		return
	}
	if p.gone {
		_ = p.f.Close() // only read from
		return
	}
	if len(ps.open) > maxOpenPacks {
		delete(ps.open, p.id)
		_ = p.f.Close()
	}
}

// list returns the ids of the pack files there are, ascending, with their sizes.
func (ps *packs) list() ([]uint64, map[uint64]int64, error) {
	entries, err := os.ReadDir(ps.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list packs: %w", err)
	}
	var ids []uint64
	sizes := map[uint64]int64{}
	for _, e := range entries {
		id, ok := parsePackName(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list packs: %w", err)
		}
		ids = append(ids, id)
		sizes[id] = info.Size()
	}
	slices.Sort(ids)
	return ids, sizes, nil
}

func (ps *packs) close() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	for id, p := range ps.open {
		errs = append(errs, p.f.Close())
		delete(ps.open, id)
	}
	ps.active = nil
	return errors.Join(errs...)
}

// readAt fills dst from a pack.
func (ps *packs) readAt(id uint64, dst []byte, off int64) error {
	p, err := ps.acquire(id)
	if err != nil {
		return err
	}
	defer ps.release(p)
	ps.reads.Add(1)
	ps.readBytes.Add(int64(len(dst)))
	if _, err := p.f.ReadAt(dst, off); err != nil {
		if errors.Is(err, io.EOF) {
			err = errTruncated
		}
		return fmt.Errorf("read pack %d at %d: %w", id, off, err)
	}
	return nil
}

func writeFull(f file, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
