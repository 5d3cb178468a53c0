package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/guestmem"
)

const (
	machineVersion = 1
	// diskPageBytes is the page of a disk's map: larger than memory's, since
	// file systems write in larger pieces.
	diskPageBytes = 16 << 10
)

// Commit makes a commit of the sandbox's present state; HEAD and its branch move.
func (e *Local) Commit(ctx context.Context, q CommitRequest) (Commit, error) {
	began := time.Now()
	if err := ValidateName("sandbox", q.Name); err != nil {
		return Commit{}, err
	}
	if err := validLabels(q.Labels); err != nil {
		return Commit{}, err
	}
	if err := e.prepare(); err != nil {
		return Commit{}, err
	}
	r, lock, err := e.lockSandbox(ctx, q.Name)
	if err != nil {
		return Commit{}, err
	}
	defer lock.unlock()
	if r.Handle == nil && !q.DiskOnly {
		return Commit{}, wrongState("sietch commit --disk-only keeps its disk, sietch start boots it", "sandbox %s is not running and has no memory to keep", q.Name)
	}
	c, pause, err := e.record(ctx, r, q, moveHead)
	if err != nil {
		return Commit{}, err
	}
	out := commitView(c)
	out.Timing = &CommitTiming{PauseMS: milliseconds(pause), TotalMS: milliseconds(time.Since(began))}
	return out, nil
}

// headMove says what a commit does to the HEAD it was made from.
type headMove int

const (
	moveHead  headMove = iota // HEAD and its branch go to the commit
	autosave                  // HEAD stays; the commit goes into the reflog
	leaveHead                 // nothing: the caller gives it to somebody at once
)

// record makes a commit of a locked sandbox and keeps its dump hot.
func (e *Local) record(ctx context.Context, r *record, q CommitRequest, move headMove) (_ *branches.Commit, pause time.Duration, err error) {
	defer func() {
		// What did not fit is gone by now. A guest that wrote at the wrong moment
		// must not pay for the attempt.
		if isFull(err) && r.Handle != nil && e.stalled(ctx, r) {
			e.goOnLocked(ctx, r)
		}
	}()
	s, err := e.instant(ctx, r, q.DiskOnly)
	if err != nil {
		return nil, 0, err
	}
	defer s.tmp.remove()
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		s.filling.Wait() // of a commit that failed
	}()
	dumps, err := e.lockDumps(ctx)
	if err != nil {
		return nil, s.pause, err
	}
	defer dumps.unlock()

	var c *branches.Commit
	err = e.withStore(ctx, func(st *branches.Store) error {
		w, err := st.NewWriter(ctx)
		if err != nil {
			return err
		}
		defer w.Close()
		if c, err = e.write(ctx, st, w, r, s, q); err != nil {
			return err
		}
		tx, err := e.headUpdate(ctx, st, r, q, move)
		if err != nil {
			return err
		}
		id, err := w.Commit(ctx, c, tx)
		if err != nil {
			return err
		}
		c.ID = id
		return nil
	})
	if err != nil {
		return nil, s.pause, err
	}
	ev := Event{Type: "commit.create", Sandbox: r.Name, Commit: c.ID.String()}
	if move == moveHead {
		ev.Ref = c.Branch
	}
	e.emit(ev)

	// The commit is durable. What follows makes the next steps fast; should it
	// be cut off, they are slower and as right.
	if err := s.install(e.dump(c.ID)); err != nil {
		e.log.Warn("a commit has no hot dump", "commit", c.ID.Short(), "err", err)
	}
	if c.Kind == branches.KindFull {
		s.tracking.Since = c.ID
		if err := e.saveTracking(r.ID, s.tracking); err != nil {
			return c, s.pause, err
		}
	}
	if move == moveHead {
		r.Head.Commit = c.ID
		if err := e.save(r); err != nil {
			return c, s.pause, err
		}
	}
	dumps.unlock()
	if _, err := e.evictDumps(e.cacheLimit()); err != nil {
		e.log.Warn("evict dumps", "err", err)
	}
	return c, s.pause, nil
}

// instant is a snapshot of a running sandbox, or the disk of a stopped one.
func (e *Local) instant(ctx context.Context, r *record, diskOnly bool) (*snapshot, error) {
	if r.Handle != nil {
		return e.takeSnapshot(ctx, r, diskOnly)
	}
	tmp, err := e.newScratch("commit")
	if err != nil {
		return nil, hostError(err)
	}
	s := &snapshot{tmp: tmp, dump: dump{tmp.dir}}
	if err := cloneFile(ctx, e.layer(r.ID), s.layer(), 0o600); err != nil {
		return nil, errors.Join(hostError(err), tmp.remove())
	}
	return s, nil
}

// write puts the bodies of a snapshot into the store and builds the commit.
func (e *Local) write(ctx context.Context, st *branches.Store, w *branches.Writer, r *record, s *snapshot, q CommitRequest) (*branches.Commit, error) {
	head, err := e.storedHead(ctx, st, r)
	if err != nil {
		return nil, err
	}
	m := r.Machine
	m.Guest.Identity = proto.Identity{}
	c := &branches.Commit{
		Kind:      branches.KindDisk,
		Branch:    head.Head.Branch,
		Sandbox:   r.Name,
		SandboxID: r.ID,
		Message:   q.Message,
		Author:    orDefault(q.Author, DefaultAuthor()),
		Created:   time.Now().UTC(),
		Labels:    maps.Clone(q.Labels),
		Image:     branches.ImageRef{ID: m.Image.ID, Name: m.Image.Name, RootfsDigest: m.Image.RootfsDigest},
	}
	if !head.Commit.IsZero() {
		c.Parents = []branches.Hash{head.Commit}
	}

	if s.changed != nil {
		c.Kind, m.VMM = branches.KindFull, r.VMM
		if err := e.writeMemory(ctx, st, w, r, s, c); err != nil {
			return nil, err
		}
	}
	diskParent := s.since
	if diskParent.IsZero() {
		diskParent = head.Commit
	}
	if err := e.writeDisk(ctx, st, w, r, s, c, diskParent); err != nil {
		return nil, err
	}
	if c.Machine, err = cbor.Marshal(m); err != nil {
		return nil, fmt.Errorf("encode machine: %w", err)
	}
	return c, nil
}

func (e *Local) writeMemory(ctx context.Context, st *branches.Store, w *branches.Writer, r *record, s *snapshot, c *branches.Commit) error {
	var parent branches.Map
	var before *os.File
	if !s.since.IsZero() {
		pc, err := st.Commit(ctx, s.since)
		if err != nil {
			return err
		}
		if pc.Memory != nil {
			parent = *pc.Memory
		}
		d, err := e.ensureDump(ctx, st, pc)
		if err != nil {
			return err
		}
		s.fill(ctx, d)
		if before, err = os.Open(d.memory()); err != nil {
			return err
		}
		defer before.Close()
	}
	now, err := os.Open(s.memory())
	if err != nil {
		return err
	}
	defer now.Close()
	dirty := pagesOf(now, before, guestmem.PageBytes, func(yield func(int64, int64) bool) {
		for first, count := range s.changed.Runs() {
			if !yield(first*guestmem.PageBytes, (first+count)*guestmem.PageBytes) {
				return
			}
		}
	})
	m, stats, err := w.WriteMap(ctx, parent, r.Machine.MemoryBytes, guestmem.PageBytes, dirty)
	if err != nil {
		return fmt.Errorf("store memory: %w", err)
	}
	devices, err := packDevices(s.devices())
	if err != nil {
		return err
	}
	id, stored, err := w.WriteBlob(ctx, devices)
	if err != nil {
		return fmt.Errorf("store device state: %w", err)
	}
	c.Memory, c.Devices = &m, id
	if c.Stats.MemoryResidentBytes, err = s.resident(before); err != nil {
		return fmt.Errorf("measure memory dump: %w", err)
	}
	c.Stats.MemoryChangedBytes = stats.PagesChanged * guestmem.PageBytes
	c.Stats.MemoryStoredBytes = stats.BytesStored + stored
	return nil
}

// writeDisk stores what changed on the writable layer since a commit, found by
// comparing with that commit's own copy: faster than hashing all of it, and
// holes are seen too.
func (e *Local) writeDisk(ctx context.Context, st *branches.Store, w *branches.Writer, r *record, s *snapshot, c *branches.Commit, since branches.Hash) error {
	var parent branches.Map
	var before *os.File
	now, err := os.Open(s.layer())
	if err != nil {
		return err
	}
	defer now.Close()
	if !since.IsZero() {
		pc, err := st.Commit(ctx, since)
		if err != nil {
			return err
		}
		parent = pc.Disk
		if before, err = e.layerOf(ctx, st, pc, s.tmp.path("parent.ext4")); err != nil {
			return err
		}
		defer before.Close()
	}
	m, stats, err := w.WriteMap(ctx, parent, r.Machine.DiskBytes, diskPageBytes, pagesOf(now, before, diskPageBytes, extentsOf(now, before, r.Machine.DiskBytes)))
	if err != nil {
		return fmt.Errorf("store disk: %w", err)
	}
	c.Disk = m
	c.Stats.DiskChangedBytes = stats.PagesChanged * diskPageBytes
	c.Stats.DiskStoredBytes = stats.BytesStored
	return nil
}

// layerOf opens a commit's writable layer: the hot one, or one made from the
// store at tmp.
func (e *Local) layerOf(ctx context.Context, st *branches.Store, c *branches.Commit, tmp string) (*os.File, error) {
	if f, err := os.Open(e.dump(c.ID).layer()); err == nil {
		return f, nil
	}
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	os.Remove(tmp) // goes away with the descriptor
	if err := st.Materialize(ctx, c.Disk, f, branches.MaterializeOptions{}); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// extentsOf yields the ranges of bytes that are allocated in either file.
func extentsOf(now, before *os.File, size int64) iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		var pages guestmem.PageSet // of diskPageBytes each
		for _, f := range []*os.File{now, before} {
			if f == nil {
				continue
			}
			if addExtents(&pages, f, size, diskPageBytes) != nil {
				pages.AddRange(0, (size+diskPageBytes-1)/diskPageBytes) // read it all, then
			}
		}
		for first, count := range pages.Runs() {
			if !yield(first*diskPageBytes, (first+count)*diskPageBytes) {
				return
			}
		}
	}
}

// addExtents adds the pages of so many bytes each that are allocated in the first
// size bytes of a file, were it only in part.
func addExtents(pages *guestmem.PageSet, f *os.File, size, pageBytes int64) error {
	return eachExtent(f, 0, size, func(off, end int64) error {
		first := off / pageBytes
		pages.AddRange(first, (end+pageBytes-1)/pageBytes-first)
		return nil
	})
}

// pagesOf yields the pages of some ranges of a file, leaving out those that are
// the same in the file before (nil: an empty one). Ranges are ascending.
func pagesOf(now, before *os.File, pageBytes int, ranges iter.Seq2[int64, int64]) iter.Seq2[branches.Page, error] {
	return func(yield func(branches.Page, error) bool) {
		const block = 1 << 20
		a, b := make([]byte, block), make([]byte, block)
		zeroes := make([]byte, pageBytes)
		for off, end := range ranges {
			for ; off < end; off += block {
				n := int(min(end-off, block))
				if err := readPadded(now, a[:n], off); err != nil {
					yield(branches.Page{}, err)
					return
				}
				if before != nil {
					if err := readPadded(before, b[:n], off); err != nil {
						yield(branches.Page{}, err)
						return
					}
				}
				for i := 0; i < n; i += pageBytes {
					page, old := a[i:min(i+pageBytes, n)], zeroes
					if before != nil {
						old = b[i:min(i+pageBytes, n)]
					}
					if bytes.Equal(page, old[:len(page)]) {
						continue
					}
					if !yield(branches.Page{Index: (off + int64(i)) / int64(pageBytes), Data: page}, nil) {
						return
					}
				}
			}
		}
	}
}

// readPadded reads at off; what lies beyond the end of the file is zero.
func readPadded(f *os.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n < len(p) && err != nil {
		if !isEOF(err) {
			return err
		}
		clear(p[n:])
	}
	return nil
}

// storedHead is where the sandbox's HEAD is according to the store; the record
// is put right when a crash left it behind.
func (e *Local) storedHead(ctx context.Context, st *branches.Store, r *record) (branches.HeadState, error) {
	h, err := st.Head(ctx, r.ID)
	if err != nil {
		return h, err
	}
	r.Head = recordHead{Branch: h.Head.Branch, Commit: h.Commit}
	return h, nil
}

// headUpdate is what happens to HEAD, branch and reflog with a commit.
func (e *Local) headUpdate(ctx context.Context, st *branches.Store, r *record, q CommitRequest, move headMove) (branches.Update, error) {
	h, err := st.Head(ctx, r.ID)
	if err != nil {
		return branches.Update{}, err
	}
	first, _, _ := strings.Cut(q.Message, "\n")
	switch move {
	case moveHead:
		up := branches.HeadUpdate{Sandbox: r.ID, Head: h.Head, Commit: branches.Self,
			Reflog: []branches.ReflogEntry{{Commit: branches.Self, Action: "commit", Message: first}}}
		if h.Head.Branch == "" {
			up.Head.Commit = branches.Self
			return branches.Update{Heads: []branches.HeadUpdate{up}}, nil
		}
		return branches.Update{
			Refs:  []branches.RefUpdate{{Name: branches.BranchRef(h.Head.Branch), Old: h.Commit, New: branches.Self}},
			Heads: []branches.HeadUpdate{up},
		}, nil
	case autosave:
		return branches.Update{Heads: []branches.HeadUpdate{{Sandbox: r.ID, Head: h.Head, Commit: h.Commit,
			Reflog: []branches.ReflogEntry{{Commit: branches.Self, Action: "save", Message: first}}}}}, nil
	}
	return branches.Update{}, nil
}

func validLabels(labels map[string]string) error {
	for k := range labels {
		if k == "" || strings.ContainsAny(k, "=\x00\n") {
			return usage("labels are KEY=VALUE", "label key %q is not allowed", k)
		}
	}
	return nil
}

// DefaultAuthor is who asks, as far as this process and its host know: the author
// of a commit that names none.
func DefaultAuthor() string {
	name := os.Getenv("SUDO_USER")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return orDefault(name, "unknown")
	}
	return orDefault(name, "unknown") + "@" + host
}

// commitMachine reads what a commit says about its machine.
func commitMachine(c *branches.Commit) (machine, error) {
	var m machine
	if err := cbor.Unmarshal(c.Machine, &m); err != nil {
		return m, &Error{Kind: ErrCorrupt, Message: "machine description of commit " + c.ID.Short() + " cannot be read", Err: err}
	}
	if m.Version > machineVersion {
		return m, &Error{Kind: ErrHost, Message: fmt.Sprintf("commit %s was made by a newer sietch (machine version %d)", c.ID.Short(), m.Version), Hint: "use that version"}
	}
	return m, nil
}
