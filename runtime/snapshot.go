package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// snapshot is a machine at one instant, in files of our own: memory pages that
// changed, device state, a clone of the writable layer. Nothing of it has been
// hashed or stored yet, and the guest runs again.
type snapshot struct {
	tmp *scratch
	dump
	// since is the commit whose memory the changed pages are against; zero for
	// the empty memory of a cold boot.
	since branches.Hash
	// changed may be nil for a disk-only snapshot.
	changed *guestmem.PageSet
	// whole: memory already holds the unchanged pages (reflinked from since).
	whole bool
	// filling: they are being copied, while those that changed are stored.
	filling errgroup.Group
	// tracking to store once the commit of it is durable.
	tracking tracking
	pause    time.Duration
}

const (
	// Pre-copy ends when a round leaves less than this to copy in the pause …
	precopyEnough = 256 // pages: 1 MiB
	// … or after this many rounds, for guests that write faster than we copy.
	precopyRounds = 4
	// What is left then is held in memory, up to this much.
	holdBytes = 16 << 20
)

// takeSnapshot pauses a running machine for as short as can be. Pages written
// before are copied while it runs (pre-copy); the pause covers only those it
// wrote meanwhile, its devices and a clone of its disk: one instant for all
// three. The caller holds the sandbox's lock and removes s.tmp.
func (e *Local) takeSnapshot(ctx context.Context, r *record, diskOnly bool) (s *snapshot, err error) {
	m, err := e.attach(ctx, r)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	wasPaused, err := m.Paused(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask state of %s: %w", r.Name, err)
	}
	if diskOnly && !wasPaused {
		e.syncGuest(ctx, r)
	}
	tmp, err := e.newScratch("commit")
	if err != nil {
		return nil, hostError(err)
	}
	s = &snapshot{tmp: tmp, dump: dump{tmp.dir}}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.remove())
			s = nil
		}
	}()

	var mem *memoryCopy
	if !diskOnly {
		if mem, err = e.openMemory(ctx, r, s); err != nil {
			return s, err
		}
		defer mem.close()
		if err := os.Mkdir(s.devices(), 0o700); err != nil {
			return s, err
		}
		if !wasPaused {
			if err := mem.precopy(ctx); err != nil {
				return s, err
			}
		}
	}

	e.lines.hush(*r.Handle) // a fork has no use for connections to us
	began := time.Now()
	if !wasPaused {
		// A crash from here on leaves the guest paused; the mark tells the next
		// command to let it go.
		mark := e.pauseMark(r.ID)
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return s, hostError(err)
		}
		defer os.Remove(mark)
		defer func() {
			if err == nil {
				return // it runs again
			}
			if rerr := m.Resume(context.WithoutCancel(ctx)); rerr != nil {
				err = errors.Join(err, fmt.Errorf("resume %s: %w", r.Name, rerr))
			}
		}()
		began = time.Now()
		if err := m.Pause(ctx); err != nil {
			return s, fmt.Errorf("pause %s: %w", r.Name, err)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	if mem != nil {
		g.Go(func() error { return mem.hold(gctx) })
		g.Go(func() error {
			if err := m.SaveDevices(gctx, s.devices()); err != nil {
				return fmt.Errorf("save devices of %s: %w", r.Name, err)
			}
			return nil
		})
	}
	g.Go(func() error {
		if err := cloneFile(gctx, e.layer(r.ID), s.layer(), 0o600); err != nil {
			return fmt.Errorf("copy disk of %s: %w", r.Name, hostError(err))
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return s, err
	}
	if !wasPaused {
		if err := m.Resume(ctx); err != nil {
			return s, fmt.Errorf("resume %s: %w", r.Name, err)
		}
		s.pause = time.Since(began)
	}
	if mem != nil {
		if err := mem.store(ctx); err != nil {
			return s, err
		}
		s.changed = mem.changed
		s.tracking.State, err = json.Marshal(mem.tracker.State())
	}
	return s, err
}

func (l layout) pauseMark(id string) string { return filepath.Join(l.sandbox(id), "paused-by-commit") }

// memoryCopy copies the changed pages of a machine into the new dump.
type memoryCopy struct {
	mem     *guestmem.Memory
	tracker guestmem.Tracker
	dst     *os.File
	changed *guestmem.PageSet
	// precopied: the tracker has been asked before in this commit.
	precopied bool
	held      *guestmem.Contents // what was copied under the pause
}

func (e *Local) openMemory(ctx context.Context, r *record, s *snapshot) (_ *memoryCopy, err error) {
	mem, err := guestmem.Open(guestmem.Target{PID: r.Handle.PID, MemoryFile: r.Handle.MemoryFile, SizeBytes: r.Machine.MemoryBytes})
	if err != nil {
		return nil, fmt.Errorf("look at the memory of %s: %w", r.Name, err)
	}
	c := &memoryCopy{mem: mem, changed: new(guestmem.PageSet)}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	t, err := e.loadTracking(r)
	if err != nil {
		return nil, err
	}
	var state guestmem.State
	if len(t.State) > 0 && json.Unmarshal(t.State, &state) == nil {
		c.tracker, err = mem.Resume(ctx, state)
		if err != nil && !errors.Is(err, guestmem.ErrTracker) {
			return nil, fmt.Errorf("track the memory of %s: %w", r.Name, err)
		}
	}
	if c.tracker == nil {
		// A new tracker first reports everything since the launch.
		if c.tracker, err = mem.Track(ctx); err != nil {
			return nil, fmt.Errorf("track the memory of %s: %w", r.Name, err)
		}
		t.Since = r.Memory.Base
	}
	s.since, s.tracking = t.Since, t
	// What is collected from here on is known to nobody until the commit is
	// durable: should it not become so, the next one has to take more.
	unsure, err := json.Marshal(c.tracker.State().Unsure())
	if err != nil {
		return nil, err
	}
	if err := e.saveTracking(r.ID, tracking{Since: t.Since, Generation: t.Generation, State: unsure}); err != nil {
		return nil, hostError(err)
	}

	if !s.since.IsZero() && e.dump(s.since).exists() {
		if err := reflink(e.dump(s.since).memory(), s.memory(), 0o600); err == nil {
			s.whole = true
		}
	}
	flags := os.O_RDWR | os.O_CREATE
	if c.dst, err = os.OpenFile(s.memory(), flags, 0o600); err != nil {
		return nil, hostError(err)
	}
	return c, hostError(c.dst.Truncate(r.Machine.MemoryBytes))
}

// precopy copies what is dirty while the guest runs, again and again, until
// little is left.
func (c *memoryCopy) precopy(ctx context.Context) error {
	if c.tracker.Name() == guestmem.Untracked {
		return nil // would report everything again in the pause
	}
	collect := c.tracker.Collect
	for range precopyRounds {
		pages, err := collect(ctx)
		if err != nil {
			return fmt.Errorf("collect changed memory: %w", err)
		}
		c.changed.Union(pages)
		c.precopied = true
		if _, err := c.mem.Copy(ctx, pages, c.dst); err != nil {
			return fmt.Errorf("copy changed memory: %w", hostError(err))
		}
		if pages.Len() < precopyEnough {
			break
		}
		collect = c.tracker.Recollect
	}
	var err error
	c.held, err = guestmem.NewContents(holdBytes)
	return err
}

// hold takes what is left, into memory of ours: faster than a file, and the
// guest stands still.
func (c *memoryCopy) hold(ctx context.Context) error {
	collect := c.tracker.Collect
	if c.precopied {
		collect = c.tracker.Recollect
	}
	pages, err := collect(ctx)
	if err != nil {
		return fmt.Errorf("collect changed memory: %w", err)
	}
	c.changed.Union(pages)
	if c.held != nil && pages.Bytes() <= c.held.CapacityBytes() {
		err = c.mem.Read(ctx, pages, c.held)
	} else {
		_, err = c.mem.Copy(ctx, pages, c.dst)
	}
	if err != nil {
		return fmt.Errorf("copy changed memory: %w", hostError(err))
	}
	return nil
}

// store writes what was held; the guest runs again.
func (c *memoryCopy) store(ctx context.Context) error {
	if c.held == nil {
		return nil
	}
	if _, err := c.held.Store(ctx, c.dst, 0); err != nil {
		return fmt.Errorf("copy changed memory: %w", hostError(err))
	}
	return nil
}

func (c *memoryCopy) close() {
	if c.tracker != nil {
		c.tracker.Close()
	}
	if c.dst != nil {
		c.dst.Close()
	}
	if c.held != nil {
		c.held.Free()
	}
	c.mem.Close()
}

// fill begins to complete the memory from the dump of the commit before. It
// touches none of the pages that changed.
func (s *snapshot) fill(ctx context.Context, since dump) {
	if !s.whole && !s.since.IsZero() && s.changed != nil {
		s.filling.Go(func() error { return s.complete(ctx, since) })
	}
}

// install waits until memory is whole and makes the snapshot the hot dump of the
// commit that was made of it.
func (s *snapshot) install(as dump) error {
	if err := s.filling.Wait(); err != nil {
		return fmt.Errorf("complete memory dump: %w", err)
	}
	if s.changed != nil {
		if err := os.Chmod(s.memory(), 0o400); err != nil {
			return err
		}
	}
	return installDump(s.tmp.dir, as)
}

// resident is how many bytes of memory are no holes, once it is whole.
func (s *snapshot) resident(before *os.File) (int64, error) {
	now, err := os.Open(s.memory())
	if err != nil {
		return 0, err
	}
	defer now.Close()
	st, err := now.Stat()
	if err != nil {
		return 0, err
	}
	// What is being filled in counts once, wherever that is at.
	var set, kept guestmem.PageSet
	if before != nil {
		if err := addExtents(&kept, before, st.Size(), guestmem.PageBytes); err != nil {
			return 0, err
		}
		kept.Subtract(s.changed)
	}
	err = addExtents(&set, now, st.Size(), guestmem.PageBytes)
	set.Union(&kept)
	return set.Bytes(), err
}

// complete fills in the memory that did not change.
func (s *snapshot) complete(ctx context.Context, since dump) error {
	in, err := os.Open(since.memory())
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(s.memory(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	at := int64(0)
	keep := func(end int64) error {
		return eachExtent(in, at, end, func(off, end int64) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return copyRange(in, out, off, end)
		})
	}
	for first, count := range s.changed.Runs() {
		if err := keep(first * guestmem.PageBytes); err != nil {
			return err
		}
		at = (first + count) * guestmem.PageBytes
	}
	return keep(st.Size())
}

// adopt takes hold of the machine in a record that has one.
func (e *Local) adopt(ctx context.Context, r *record) (vmm.Machine, error) {
	d, err := e.driver(r.Handle.Driver)
	if err != nil {
		return nil, err
	}
	return d.Attach(ctx, *r.Handle)
}

// syncTimeout is what a guest gets to write out what it has.
const syncTimeout = 30 * time.Second

// syncGuest has a guest write its files to its disk, which without its memory is
// all there will be of them. A guest that does not answer keeps nobody from
// saving what is there.
func (e *Local) syncGuest(ctx context.Context, r *record) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	c, err := e.line(r)
	if err == nil {
		defer c.Close()
		err = c.Sync(ctx)
	}
	if err != nil {
		e.remark(fmt.Sprintf("the guest of %s could not be asked to write its files out first: the last ones may be missing (%v)", r.Name, err))
	}
}

// hasMachine refuses a sandbox that is stopped. Of a record that was just locked
// it is the whole truth: what ended by itself has been cleared away.
func hasMachine(r *record) error {
	if r.Handle == nil {
		return wrongState("start it with: sietch start "+r.Name, "sandbox %s is not running", r.Name)
	}
	return nil
}

// attach adopts the machine of a running sandbox.
func (e *Local) attach(ctx context.Context, r *record) (vmm.Machine, error) {
	if err := hasMachine(r); err != nil {
		return nil, err
	}
	m, err := e.adopt(ctx, r)
	if errors.Is(err, vmm.ErrGone) {
		return nil, wrongState("sietch logs "+r.Name+" may say why; boot its disk with: sietch start "+r.Name, "the virtual machine of sandbox %s has ended", r.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the virtual machine of %s: %w", r.Name, err)
	}
	return m, nil
}
