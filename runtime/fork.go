package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/branches"
)

// maxForks bounds one request; several may follow each other.
const maxForks = 512

// Fork makes live copies of a running sandbox's present state, or of a commit.
func (e *Local) Fork(ctx context.Context, q ForkRequest, each func(Fork)) ([]Fork, error) {
	began := time.Now()
	if q.N == 0 {
		q.N = 1
	}
	if q.N < 0 || q.N > maxForks {
		return nil, usage("", "number of forks: %d is not between 1 and %d", q.N, maxForks)
	}
	if q.Prefix != "" {
		if err := ValidateName("fork", q.Prefix); err != nil {
			return nil, err
		}
	}
	if q.From == "" {
		return nil, usage("", "no sandbox or ref given")
	}
	if err := validLabels(q.Labels); err != nil {
		return nil, err
	}
	if err := e.makeRoom(ctx); err != nil {
		return nil, err
	}
	dumps, err := e.lockDumps(ctx)
	if err != nil {
		return nil, err
	}
	defer dumps.unlock()
	ref, prefix, err := e.forkSource(ctx, q)
	if err != nil {
		return nil, err
	}
	head := newHead{own: q.Branch, action: "fork"}
	label := func(r *record) {
		if r.Labels == nil && len(q.Labels) > 0 {
			r.Labels = map[string]string{}
		}
		maps.Copy(r.Labels, q.Labels)
	}
	return e.spawn(ctx, spawnRequest{ref: ref, n: q.N, name: q.Prefix, prefix: prefix, head: head, edit: label, began: began}, each)
}

// forkSource makes a commit of a running sandbox, which moves nobody's HEAD,
// or leaves it at the REF.
func (e *Local) forkSource(ctx context.Context, q ForkRequest) (ref, prefix string, err error) {
	r, err := e.find(q.From)
	if err != nil || r.Name != q.From {
		return q.From, q.Prefix, nil
	}
	prefix = orDefault(q.Prefix, r.Name)
	r, lock, err := e.lockSandbox(ctx, q.From)
	if err != nil {
		return "", "", err
	}
	defer lock.unlock()
	kind := "disk of "
	if r.Handle != nil {
		kind = ""
	}
	c, _, err := e.record(ctx, r, CommitRequest{Name: r.Name, DiskOnly: r.Handle == nil,
		Message: fmt.Sprintf("fork of %s%s", kind, r.Name)}, leaveHead)
	if err != nil {
		return "", "", err
	}
	return c.ID.String(), prefix, nil
}

// spawnRequest is what fork and run of a commit have in common.
type spawnRequest struct {
	ref    string
	n      int
	name   string // exact name for a single one, prefix for several
	prefix string // when there is no name
	head   newHead
	// attach checks a branch out that ref names, where no sandbox has it.
	attach bool
	cold   bool          // boot the disk, whatever memory there is
	edit   func(*record) // the caller's wishes
	began  time.Time
}

// spawn makes n sandboxes from one commit, side by side. Those that came up
// stay when others fail. The caller holds lockDumps.
func (e *Local) spawn(ctx context.Context, q spawnRequest, each func(Fork)) ([]Fork, error) {
	var from source
	var layer string
	var claims []claim
	tmp, err := e.newScratch("fork")
	if err != nil {
		return nil, hostError(err)
	}
	defer tmp.remove()
	err = e.withStore(ctx, func(s *branches.Store) error {
		c, res, err := e.resolve(ctx, s, q.ref)
		if err != nil {
			return err
		}
		m, err := commitMachine(c)
		if err != nil {
			return err
		}
		if c.Kind == branches.KindFull && !q.cold {
			d, err := e.ensureDump(ctx, s, c)
			if err != nil {
				return err
			}
			from, layer = source{commit: c.ID, dump: d, saved: *m.VMM}, d.layer()
			if err := e.loadable(ctx, from); err != nil {
				return err
			}
		} else {
			f, err := e.layerOf(ctx, s, c, tmp.path("layer.ext4"))
			if err != nil {
				return err
			}
			defer f.Close()
			layer = tmp.path("clone.ext4")
			if err := cloneFile(ctx, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), layer, 0o600); err != nil {
				return err
			}
		}
		q.head.commit = c.ID
		if q.attach && res.Branch != "" {
			if id, _, err := e.checkedOut(ctx, s, res.Branch); err != nil {
				return err
			} else if id == "" {
				q.head.branch = res.Branch
			}
		}
		if claims, err = e.claim(ctx, e.drafts(q, c, m)...); err != nil {
			return err
		}
		recs := make([]*record, len(claims))
		for i, cl := range claims {
			recs[i] = cl.rec
		}
		return e.giveHeads(ctx, s, recs, q.head)
	})
	if err != nil {
		for _, c := range claims {
			err = errors.Join(err, c.back.Run(ctx))
		}
		return nil, err
	}
	return e.raise(ctx, claims, from, layer, q, each)
}

func (e *Local) drafts(q spawnRequest, c *branches.Commit, m machine) []draft {
	list := make([]draft, q.n)
	for i := range list {
		r := &record{Machine: m, Network: network{Mode: m.NetworkMode}, Labels: maps.Clone(c.Labels)}
		// Nothing that two copies would share may be changed in place.
		r.Machine.Guest.Env = slices.Clone(m.Guest.Env)
		if q.edit != nil {
			q.edit(r)
		}
		list[i] = draft{rec: r, prefix: orDefault(q.name, orDefault(q.prefix, c.Sandbox))}
		if q.n == 1 && q.name != "" {
			r.Name = q.name
		}
	}
	return list
}

// raise starts claimed sandboxes beside each other.
func (e *Local) raise(ctx context.Context, claims []claim, from source, layer string, q spawnRequest, each func(Fork)) ([]Fork, error) {
	var mu sync.Mutex
	var forks []Fork
	var errs []error
	var lost []*record
	var g errgroup.Group
	g.SetLimit(max(4, 2*runtime.NumCPU()))
	for _, c := range claims {
		g.Go(func() error {
			r := c.rec
			err := func() (err error) {
				defer c.back.OnError(ctx, &err)
				if err := cloneFile(ctx, layer, e.layer(r.ID), 0o600); err != nil {
					return hostError(err)
				}
				if err := e.start(ctx, r, from); err != nil {
					return err
				}
				c.back.Add("end sandbox "+r.Name, func(ctx context.Context) error { return e.tearDown(ctx, r) })
				return e.settle(c)
			}()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("fork %s: %w", r.Name, err))
				lost = append(lost, r)
				return nil
			}
			f := Fork{Name: r.Name, Commit: r.Head.Commit.String(), IP: r.Network.Addr.String(), ReadyMS: milliseconds(time.Since(q.began))}
			forks = append(forks, f)
			if q.head.action == "fork" {
				e.emit(Event{Type: "sandbox.fork", Sandbox: f.Name, Commit: f.Commit})
			}
			if each != nil {
				each(f)
			}
			return nil
		})
	}
	g.Wait()
	if len(lost) > 0 {
		errs = append(errs, e.withStore(context.WithoutCancel(ctx), func(s *branches.Store) error {
			var tx branches.Update
			for _, r := range lost {
				tx.Heads = append(tx.Heads, branches.HeadUpdate{Sandbox: r.ID, Delete: true})
				if q.head.own {
					tx.Refs = append(tx.Refs, branches.RefUpdate{Name: branches.BranchRef(r.Head.Branch), Old: q.head.commit})
				}
			}
			return s.Update(context.WithoutCancel(ctx), tx)
		}))
	}
	return forks, errors.Join(errs...)
}

// refuseWishes says what of a request a commit cannot be given.
func refuseWishes(q RunRequest) error {
	switch {
	case q.FromDisk && q.DiskBytes != 0:
		return usage("", "the size of a commit's disk cannot be changed")
	case q.FromDisk:
		return nil
	case q.MemoryBytes != 0 || q.CPUs != 0 || q.DiskBytes != 0 || len(q.Args) > 0 || q.User != "" || q.WorkingDir != "" || len(q.Env) > 0 || q.Nested:
		return usage("boot its disk with --from-disk to change them", "the machine of a commit goes on as it was: cpus, memory, disk, command, user, directory and environment are part of it")
	}
	return nil
}

// runCommit is run with a REF: one sandbox, with wishes of its own.
func (e *Local) runCommit(ctx context.Context, q RunRequest, began time.Time) (Sandbox, error) {
	if err := refuseWishes(q); err != nil {
		// That there is such a commit is the first thing to know.
		return Sandbox{}, cmp.Or(e.withStore(ctx, func(s *branches.Store) error {
			_, _, err := e.resolve(ctx, s, q.From)
			return err
		}), err)
	}
	s := spawnRequest{ref: q.From, n: 1, name: q.Name, head: newHead{action: "run"}, attach: true, cold: q.FromDisk, began: began}
	s.edit = func(r *record) {
		r.Network.Ports, r.Expires = q.Ports, expiry(q.TTL)
		r.askedUser = q.User
		r.Network.Mode = orDefault(q.Network, r.Network.Mode)
		r.Machine.NetworkMode = r.Network.Mode
		if r.Labels == nil && len(q.Labels) > 0 {
			r.Labels = map[string]string{}
		}
		maps.Copy(r.Labels, q.Labels)
		m := &r.Machine
		m.Nested = m.Nested || q.Nested
		m.CPUs, m.MemoryBytes = orDefault(q.CPUs, m.CPUs), orDefault(q.MemoryBytes, m.MemoryBytes)
		m.Guest.Env = append(m.Guest.Env, q.Env...)
		m.Guest.User, m.Guest.WorkingDir = orDefault(q.User, m.Guest.User), orDefault(q.WorkingDir, m.Guest.WorkingDir)
		if len(q.Args) > 0 {
			m.Guest.Args, m.Guest.Init = q.Args, isInit(q.Args)
		}
	}
	dumps, err := e.lockDumps(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	defer dumps.unlock()
	forks, err := e.spawn(ctx, s, nil)
	if err != nil {
		return Sandbox{}, err
	}
	r, err := e.find(forks[0].Name)
	if err != nil {
		return Sandbox{}, err
	}
	return e.afterRun(ctx, q, r, began)
}
