package runtime

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/guestmem"
	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// Ballooning without a balloon. VMMs' own devices give memory back by punching
// holes into the file behind it, which other sandboxes map; so the guest's agent
// takes pages out of use (guestinit/agent), and the host drops this one
// process's copies of them. It works the same on every VMM, and a page that is
// held costs neither host memory nor room in commits.

// ResizeRequest is `sietch resize`.
type ResizeRequest struct {
	Name string
	// CPUs is how many CPUs' time the sandbox gets, the VMM's work included, at
	// most as many as it was made with; 0: as it is.
	CPUs float64
	// MemoryBytes of the guest, at most what it was made with; 0: as it is.
	MemoryBytes int64
}

// ReclaimReport says what a sandbox gave back.
type ReclaimReport struct {
	Name           string `json:"name"`
	ReclaimedBytes int64  `json:"reclaimed_bytes"`
	PrivateBytes   int64  `json:"private_bytes"` // what is left that no other sandbox shares
}

const (
	minCPULimit = 0.05
	// holdStep is taken at a time: the guest touches what it takes, so the host
	// lends it that much for a moment.
	holdStep = 32 << 20
	// holdTimeout is for one step, on a host that emulates and is busy.
	holdTimeout = 2 * time.Minute
	// freeReserve is left free in a guest that gives its free memory back.
	freeReserve = 32 << 20
)

// Resize changes what a running sandbox may use.
func (e *Local) Resize(ctx context.Context, q ResizeRequest) (Sandbox, error) {
	switch {
	case q.CPUs == 0 && q.MemoryBytes == 0:
		return Sandbox{}, usage("give --cpus, --memory or both", "nothing to change")
	case q.CPUs != 0 && (math.IsNaN(q.CPUs) || q.CPUs < minCPULimit):
		return Sandbox{}, usage("", "cpus: %g is less than %g", q.CPUs, minCPULimit)
	case q.MemoryBytes != 0 && q.MemoryBytes < minMemoryBytes:
		return Sandbox{}, usage("", "memory: %d bytes is less than %d MiB", q.MemoryBytes, minMemoryBytes>>20)
	}
	var out Sandbox
	err := e.change(ctx, q.Name, func(r *record) error {
		hint := "make another from its disk: sietch commit " + r.Name + ", then sietch run --from-disk " + r.Name
		if q.CPUs > float64(r.Machine.CPUs) {
			return usage(hint+" --cpus N", "sandbox %s was made with %d CPUs and cannot have more", r.Name, r.Machine.CPUs)
		}
		if q.MemoryBytes > r.Machine.MemoryBytes {
			return usage(hint+" --memory SIZE", "sandbox %s was made with %d MiB of memory and cannot have more", r.Name, r.Machine.MemoryBytes>>20)
		}
		if err := hasMachine(r); err != nil {
			return err
		}
		before := r.Machine
		if q.CPUs != 0 {
			r.Machine.CPULimit = q.CPUs
			if q.CPUs == float64(r.Machine.CPUs) {
				r.Machine.CPULimit = 0
			}
		}
		if q.MemoryBytes != 0 {
			r.Machine.MemoryLimitBytes = q.MemoryBytes
			if q.MemoryBytes == r.Machine.MemoryBytes {
				r.Machine.MemoryLimitBytes = 0
			}
		}
		if r.Machine.memory() > before.memory() {
			if err := e.admit(ctx, r.Machine.memory()-before.memory()); err != nil { // it is counted with what it had
				r.Machine = before
				return err
			}
		}
		// Growing, the host's limit goes first; shrinking, the guest.
		var err error
		if r.Machine.memory() >= before.memory() {
			err = e.setLimits(r)
		}
		if err == nil && q.MemoryBytes != 0 {
			err = e.holdMemory(ctx, r, r.Machine.MemoryBytes-r.Machine.memory(), r.Machine.MemoryBytes-before.memory())
		}
		if err == nil && r.Machine.memory() < before.memory() {
			if err = e.setLimits(r); err != nil {
				err = errors.Join(err, e.holdMemory(context.WithoutCancel(ctx), r, r.Machine.MemoryBytes-before.memory(), 0))
			}
		}
		if err != nil {
			r.Machine = before
			return errors.Join(err, e.setLimits(r))
		}
		out = e.view(ctx, r)
		return nil
	})
	if err == nil {
		e.emit(Event{Type: "sandbox.resize", Sandbox: out.Name})
	}
	return out, err
}

// setLimits sets the limits of a sandbox's control group, where the host has any.
func (e *Local) setLimits(r *record) error {
	_, err := jail.MakeGroup(e.cgroup(r.ID), r.Machine.limits())
	if errors.Is(err, jail.ErrDenied) {
		return nil
	}
	return hostError(err)
}

// Reclaim gives back what a guest has free at this moment. It stays the guest's:
// what it needs again it gets.
func (e *Local) Reclaim(ctx context.Context, name string) (ReclaimReport, error) {
	out := ReclaimReport{Name: name}
	err := e.change(ctx, name, func(r *record) error {
		if err := hasMachine(r); err != nil {
			return err
		}
		out.Name = r.Name
		var before, after MemoryStats
		if err := before.read(r.Handle.PID); err != nil {
			return err
		}
		if err := e.reclaim(ctx, r); err != nil {
			return err
		}
		if err := after.read(r.Handle.PID); err != nil {
			return err
		}
		out.ReclaimedBytes, out.PrivateBytes = max(0, before.PrivateBytes-after.PrivateBytes), after.PrivateBytes
		return nil
	})
	return out, err
}

func (e *Local) reclaim(ctx context.Context, r *record) (err error) {
	h, err := e.holder(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	a, err := h.hold(ctx, -1)
	if err != nil {
		return err
	}
	kept := a.Memory.HeldBytes
	defer func() {
		_, rerr := h.hold(context.WithoutCancel(ctx), kept)
		err = errors.Join(err, rerr)
	}()
	for {
		step := min(holdStep, a.Memory.FreeBytes-freeReserve)
		if step < proto.MemoryBlock {
			return nil
		}
		before := a.Memory.HeldBytes
		if a, err = h.hold(ctx, before+step/proto.MemoryBlock*proto.MemoryBlock); err != nil {
			return err
		}
		if a.Memory.HeldBytes <= before {
			return nil // what is free is in too small pieces
		}
	}
}

// holdMemory has the guest do without so many bytes. Where it cannot, it is left
// with before.
func (e *Local) holdMemory(ctx context.Context, r *record, want, before int64) (err error) {
	h, err := e.holder(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	defer func() {
		if err != nil {
			_, rerr := h.hold(context.WithoutCancel(ctx), before)
			err = errors.Join(err, rerr)
		}
	}()
	a, err := h.hold(ctx, -1)
	if err != nil {
		return err
	}
	if want <= a.Memory.HeldBytes {
		_, err = h.hold(ctx, want)
		return err
	}
	for a.Memory.HeldBytes < want {
		held := a.Memory.HeldBytes
		if a, err = h.hold(ctx, min(want, held+holdStep)); err != nil {
			return err
		}
		if a.Memory.HeldBytes <= held {
			least := (r.Machine.MemoryBytes - held + 1<<20 - 1) >> 20
			return wrongState(fmt.Sprintf("free some memory in it, or give it at least %dM", least),
				"the guest of %s uses too much memory to do without %d MiB: it can spare %d MiB", r.Name, want>>20, held>>20)
		}
	}
	return nil
}

// holder has a guest hold memory and takes what is behind it.
type holder struct {
	name  string
	guest *line
	mem   *guestmem.Memory
	mark  []byte
	taken guestmem.PageSet // by this holder
}

func (e *Local) holder(ctx context.Context, r *record) (*holder, error) {
	if r.Want == wantPaused {
		return nil, wrongState("sietch resume "+r.Name, "sandbox %s is paused", r.Name)
	}
	mem, err := guestmem.Open(guestmem.Target{PID: r.Handle.PID, MemoryFile: r.Handle.MemoryFile, SizeBytes: r.Machine.MemoryBytes})
	if err != nil {
		return nil, err
	}
	c, err := e.line(r)
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	h := &holder{name: r.Name, guest: c, mem: mem, mark: make([]byte, proto.MarkBytes)}
	rand.Read(h.mark)
	return h, nil
}

func (h *holder) close() error { return errors.Join(h.guest.Close(), h.mem.Close()) }

// hold makes the guest hold so many bytes (negative: those it holds) and takes
// the memory behind all of them.
func (h *holder) hold(ctx context.Context, want int64) (proto.MemoryAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	a, err := h.guest.HoldMemory(ctx, proto.MemoryRequest{HoldBytes: want, Mark: h.mark})
	if err != nil {
		return a, guestError(h.name, "hold memory", err)
	}
	if err := h.take(ctx, a.Blocks); err != nil {
		return a, fmt.Errorf("take memory of %s: %w", h.name, err)
	}
	return a, nil
}

// errMark: a block is not what the guest said it is.
var errMark = errors.New("the guest names memory that it does not hold")

// take discards blocks that were not yet. Each must begin with the mark, which
// proves that the address is right and the page in nobody else's hands: a guest
// can only ever harm itself.
func (h *holder) take(ctx context.Context, blocks []uint64) error {
	const pages = proto.MemoryBlock / guestmem.PageBytes
	var fresh, first guestmem.PageSet
	for _, address := range blocks {
		offset, ok := vmm.MemoryOffset(address)
		if !ok || offset%proto.MemoryBlock != 0 || offset/guestmem.PageBytes+pages > h.mem.Pages() {
			return errMark
		}
		if page := offset / guestmem.PageBytes; !h.taken.Has(page) {
			first.Add(page)
			fresh.AddRange(page, pages)
		}
	}
	if first.Len() == 0 {
		return nil
	}
	held, err := guestmem.NewContents(first.Bytes())
	if err != nil {
		return err
	}
	defer held.Free()
	if err := h.mem.Read(ctx, &first, held); err != nil {
		return err
	}
	for _, page := range held.All() {
		if !bytes.HasPrefix(page, h.mark) {
			return errMark
		}
	}
	if _, err := h.mem.Discard(ctx, &fresh); err != nil {
		return err
	}
	h.taken.Union(&fresh)
	return nil
}
