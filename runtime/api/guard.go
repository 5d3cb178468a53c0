package api

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// tokenLabel says by which token a sandbox was made.
const tokenLabel = "sietch.token"

// as is the engine as the caller of a request may use it.
func (s *Server) as(r *http.Request) runtime.Engine {
	var who *Token
	if c := callOf(r); c != nil {
		who = c.who
	}
	if who == nil && s.o.MaxSandboxes == 0 {
		return s.engine
	}
	return &guarded{s.engine, s, who}
}

// unlimited refuses what shows or changes everybody's things to tokens that are
// limited to some.
func (s *Server) unlimited(r *http.Request) error {
	if c := callOf(r); c != nil && c.who != nil && len(c.who.Labels) > 0 {
		return errLimited
	}
	return nil
}

var errLimited = refusal(errForbidden, "the token is limited to sandboxes by label and may not do that", "")

// guarded is the engine with what a token may not do taken away, and with the
// bounds on the number of sandboxes. It names every verb, so that a new one does
// not compile before somebody has thought about it.
type guarded struct {
	e   runtime.Engine
	s   *Server
	who *Token // nil: whoever could connect
}

var _ runtime.Engine = (*guarded)(nil)

func (g *guarded) limited() bool { return g.who != nil && len(g.who.Labels) > 0 }

func (g *guarded) global() error {
	if g.limited() {
		return errLimited
	}
	return nil
}

func (g *guarded) sees(b runtime.Sandbox) bool {
	for k, v := range g.who.Labels {
		if b.Labels[k] != v {
			return false
		}
	}
	return true
}

// box refuses a sandbox that is not the token's as if there were none.
func (g *guarded) box(ctx context.Context, name string) error {
	if !g.limited() {
		return nil
	}
	b, err := g.e.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if !g.sees(b) {
		return refusal(runtime.ErrNotFound, fmt.Sprintf("sandbox %s does not exist", name), "")
	}
	return nil
}

// commitOf refuses commits of sandboxes that are not the token's: a commit holds
// a machine's memory.
func (g *guarded) commitOf(ctx context.Context, ref string) error {
	if !g.limited() {
		return nil
	}
	c, err := g.e.Show(ctx, ref)
	var b runtime.Sandbox
	if err == nil {
		b, err = g.e.Inspect(ctx, c.Sandbox)
	}
	if err != nil || !g.made(b, c) {
		return refusal(runtime.ErrNotFound, fmt.Sprintf("no commit that the token may use is called %q", ref), "")
	}
	return nil
}

// made says whether a commit is of a sandbox that the token sees, and not of an
// earlier one that had its name.
func (g *guarded) made(b runtime.Sandbox, c runtime.Commit) bool {
	return b.Name == c.Sandbox && g.sees(b) && !c.Created.Before(b.Created.Truncate(time.Second))
}

// source lets images and the token's own sandboxes and commits be booted.
func (g *guarded) source(ctx context.Context, from string) error {
	if !g.limited() {
		return nil
	}
	if _, err := g.e.InspectImage(ctx, from); err == nil {
		return nil
	}
	return g.commitOf(ctx, from)
}

// labels are those of a sandbox that the token makes.
func (g *guarded) labels(asked map[string]string) map[string]string {
	if g.who == nil {
		return asked
	}
	all := maps.Clone(asked)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, g.who.Labels)
	all[tokenLabel] = g.who.ID
	return all
}

// --- images

func (g *guarded) Build(ctx context.Context, r runtime.BuildRequest) (runtime.Image, error) {
	if err := g.global(); err != nil {
		return runtime.Image{}, err
	}
	return g.e.Build(ctx, r)
}

func (g *guarded) ListImages(ctx context.Context) ([]runtime.Image, error) {
	return g.e.ListImages(ctx)
}

func (g *guarded) InspectImage(ctx context.Context, image string) (runtime.Image, error) {
	return g.e.InspectImage(ctx, image)
}

func (g *guarded) RemoveImage(ctx context.Context, image string) error {
	if err := g.global(); err != nil {
		return err
	}
	return g.e.RemoveImage(ctx, image)
}

func (g *guarded) TagImage(ctx context.Context, image, name string) (runtime.Image, error) {
	if err := g.global(); err != nil {
		return runtime.Image{}, err
	}
	return g.e.TagImage(ctx, image, name)
}

func (g *guarded) ImportImage(ctx context.Context, r runtime.ImportRequest) (runtime.Image, error) {
	if err := g.global(); err != nil {
		return runtime.Image{}, err
	}
	return g.e.ImportImage(ctx, r)
}

func (g *guarded) ExportImage(ctx context.Context, image, format string, w io.Writer) error {
	return g.e.ExportImage(ctx, image, format, w)
}

func (g *guarded) PullImage(ctx context.Context, ref string, progress io.Writer) (runtime.Image, error) {
	if err := g.global(); err != nil {
		return runtime.Image{}, err
	}
	return g.e.PullImage(ctx, ref, progress)
}

func (g *guarded) BootstrapImage(ctx context.Context, name string, progress io.Writer) (runtime.Image, error) {
	if err := g.global(); err != nil {
		return runtime.Image{}, err
	}
	return g.e.BootstrapImage(ctx, name, progress)
}

// --- sandboxes

func (g *guarded) Run(ctx context.Context, r runtime.RunRequest) (runtime.Sandbox, error) {
	if err := g.source(ctx, r.From); err != nil {
		return runtime.Sandbox{}, err
	}
	r.Labels = g.labels(r.Labels)
	place, err := g.s.reserve(ctx, g.who, 1)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	b, err := g.e.Run(ctx, r)
	place.taken(b.Name)
	return b, err
}

func (g *guarded) List(ctx context.Context, all bool) ([]runtime.Sandbox, error) {
	list, err := g.e.List(ctx, all)
	if g.limited() {
		list = slices.DeleteFunc(list, func(b runtime.Sandbox) bool { return !g.sees(b) })
	}
	return list, err
}

func (g *guarded) Inspect(ctx context.Context, name string) (runtime.Sandbox, error) {
	b, err := g.e.Inspect(ctx, name)
	if err == nil && g.limited() && !g.sees(b) {
		return runtime.Sandbox{}, g.box(ctx, name)
	}
	return b, err
}

func (g *guarded) Logs(ctx context.Context, r runtime.LogsRequest, w io.Writer) error {
	if err := g.box(ctx, r.Name); err != nil {
		return err
	}
	return g.e.Logs(ctx, r, w)
}

func (g *guarded) Exec(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return runtime.ExitStatus{}, err
	}
	return g.e.Exec(ctx, r, stdio)
}

func (g *guarded) CopyIn(ctx context.Context, r runtime.CopyInRequest, tar io.Reader) error {
	if err := g.box(ctx, r.Name); err != nil {
		return err
	}
	return g.e.CopyIn(ctx, r, tar)
}

func (g *guarded) CopyOut(ctx context.Context, r runtime.CopyOutRequest, tar io.Writer) error {
	if err := g.box(ctx, r.Name); err != nil {
		return err
	}
	return g.e.CopyOut(ctx, r, tar)
}

func (g *guarded) StatPath(ctx context.Context, name, path string) (runtime.PathStat, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.PathStat{}, err
	}
	return g.e.StatPath(ctx, name, path)
}

// Stats shows a limited token its own sandboxes.
func (g *guarded) Stats(ctx context.Context, names []string) ([]runtime.Stats, error) {
	for _, name := range names {
		if err := g.box(ctx, name); err != nil {
			return nil, err
		}
	}
	if len(names) == 0 && g.limited() {
		boxes, err := g.List(ctx, false)
		if err != nil {
			return nil, err
		}
		if len(boxes) == 0 {
			return []runtime.Stats{}, nil
		}
		for _, b := range boxes {
			names = append(names, b.Name)
		}
	}
	return g.e.Stats(ctx, names)
}

func (g *guarded) Resize(ctx context.Context, r runtime.ResizeRequest) (runtime.Sandbox, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return runtime.Sandbox{}, err
	}
	return g.e.Resize(ctx, r)
}

func (g *guarded) Reclaim(ctx context.Context, name string) (runtime.ReclaimReport, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.ReclaimReport{}, err
	}
	return g.e.Reclaim(ctx, name)
}

func (g *guarded) Pause(ctx context.Context, name string) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.Pause(ctx, name)
}

func (g *guarded) Resume(ctx context.Context, name string) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.Resume(ctx, name)
}

func (g *guarded) Stop(ctx context.Context, r runtime.StopRequest) error {
	if err := g.box(ctx, r.Name); err != nil {
		return err
	}
	return g.e.Stop(ctx, r)
}

func (g *guarded) Start(ctx context.Context, name string) (runtime.Sandbox, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.Sandbox{}, err
	}
	return g.e.Start(ctx, name)
}

func (g *guarded) Remove(ctx context.Context, name string, force bool) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.Remove(ctx, name, force)
}

// --- processes, files, ports

func (g *guarded) StartProcess(ctx context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return runtime.Process{}, err
	}
	return g.e.StartProcess(ctx, r)
}

func (g *guarded) ListProcesses(ctx context.Context, name string) ([]runtime.Process, error) {
	if err := g.box(ctx, name); err != nil {
		return nil, err
	}
	return g.e.ListProcesses(ctx, name)
}

func (g *guarded) InspectProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.Process{}, err
	}
	return g.e.InspectProcess(ctx, name, id)
}

func (g *guarded) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.Process{}, err
	}
	return g.e.WaitProcess(ctx, name, id)
}

func (g *guarded) ProcessOutput(ctx context.Context, r runtime.ProcessOutputRequest, w io.Writer) (int64, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return 0, err
	}
	return g.e.ProcessOutput(ctx, r, w)
}

func (g *guarded) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.SignalProcess(ctx, name, id, sig)
}

func (g *guarded) RemoveProcess(ctx context.Context, name, id string) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.RemoveProcess(ctx, name, id)
}

func (g *guarded) ListDir(ctx context.Context, name, path string) ([]runtime.PathStat, error) {
	if err := g.box(ctx, name); err != nil {
		return nil, err
	}
	return g.e.ListDir(ctx, name, path)
}

func (g *guarded) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.MakeDir(ctx, name, path, mode, parents)
}

func (g *guarded) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.RemovePath(ctx, name, path, recursive)
}

func (g *guarded) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	if err := g.box(ctx, r.Name); err != nil {
		return err
	}
	return g.e.WatchPath(ctx, r, each)
}

func (g *guarded) AddPort(ctx context.Context, name string, p runtime.Port) (runtime.Port, error) {
	if err := g.box(ctx, name); err != nil {
		return runtime.Port{}, err
	}
	return g.e.AddPort(ctx, name, p)
}

func (g *guarded) RemovePort(ctx context.Context, name string, p runtime.Port) error {
	if err := g.box(ctx, name); err != nil {
		return err
	}
	return g.e.RemovePort(ctx, name, p)
}

func (g *guarded) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	if err := g.box(ctx, name); err != nil {
		return nil, err
	}
	return g.e.DialPort(ctx, name, port)
}

// --- history

func (g *guarded) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return runtime.Commit{}, err
	}
	return g.e.Commit(ctx, r)
}

func (g *guarded) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	if err := g.box(ctx, r.From); err != nil {
		if err := g.commitOf(ctx, r.From); err != nil {
			return nil, err
		}
	}
	r.Labels = g.labels(r.Labels)
	place, err := g.s.reserve(ctx, g.who, max(1, r.N))
	if err != nil {
		return nil, err
	}
	forks, err := g.e.Fork(ctx, r, each)
	names := make([]string, len(forks))
	for i, f := range forks {
		names[i] = f.Name
	}
	place.taken(names...)
	return forks, err
}

func (g *guarded) Checkout(ctx context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	if err := g.box(ctx, r.Name); err != nil {
		return runtime.Sandbox{}, err
	}
	if err := g.commitOf(ctx, r.Ref); err != nil {
		return runtime.Sandbox{}, err
	}
	return g.e.Checkout(ctx, r)
}

func (g *guarded) Log(ctx context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	list, err := g.e.Log(ctx, r)
	if err != nil || !g.limited() {
		return list, err
	}
	boxes, err := g.List(ctx, true)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(c runtime.Commit) bool {
		return !slices.ContainsFunc(boxes, func(b runtime.Sandbox) bool { return g.made(b, c) })
	}), nil
}

func (g *guarded) Show(ctx context.Context, ref string) (runtime.Commit, error) {
	if err := g.commitOf(ctx, ref); err != nil {
		return runtime.Commit{}, err
	}
	return g.e.Show(ctx, ref)
}

func (g *guarded) Reflog(ctx context.Context, name string) ([]runtime.ReflogEntry, error) {
	if err := g.box(ctx, name); err != nil {
		return nil, err
	}
	return g.e.Reflog(ctx, name)
}

func (g *guarded) ListRefs(ctx context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	list, err := g.e.ListRefs(ctx, kind)
	if err != nil || !g.limited() {
		return list, err
	}
	mine, err := g.Log(ctx, runtime.LogRequest{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(r runtime.Ref) bool {
		return !slices.ContainsFunc(mine, func(c runtime.Commit) bool { return c.ID == r.Commit })
	}), nil
}

func (g *guarded) CreateRef(ctx context.Context, kind runtime.RefKind, name, ref string) (runtime.Ref, error) {
	if err := g.commitOf(ctx, ref); err != nil {
		return runtime.Ref{}, err
	}
	return g.e.CreateRef(ctx, kind, name, ref)
}

func (g *guarded) DeleteRef(ctx context.Context, kind runtime.RefKind, name string) error {
	if err := g.commitOf(ctx, string(kind)+"/"+name); err != nil {
		return err
	}
	return g.e.DeleteRef(ctx, kind, name)
}

func (g *guarded) RenameBranch(ctx context.Context, from, to string) error {
	if err := g.commitOf(ctx, "branch/"+from); err != nil {
		return err
	}
	return g.e.RenameBranch(ctx, from, to)
}

// --- the whole

func (g *guarded) GC(ctx context.Context, dryRun bool) (runtime.GCReport, error) {
	if err := g.global(); err != nil {
		return runtime.GCReport{}, err
	}
	return g.e.GC(ctx, dryRun)
}

func (g *guarded) Fsck(ctx context.Context) (runtime.FsckReport, error) {
	if err := g.global(); err != nil {
		return runtime.FsckReport{}, err
	}
	return g.e.Fsck(ctx)
}

func (g *guarded) DiskUsage(ctx context.Context) (runtime.UsageReport, error) {
	if err := g.global(); err != nil {
		return runtime.UsageReport{}, err
	}
	return g.e.DiskUsage(ctx)
}

func (g *guarded) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	if err := g.global(); err != nil {
		return err
	}
	return g.e.Events(ctx, r, each)
}

func (g *guarded) Doctor(ctx context.Context) (runtime.DoctorReport, error) { return g.e.Doctor(ctx) }

func (g *guarded) Close() error { return nil }

// places counts sandboxes that are on their way, so that calls side by side do
// not pass a bound together.
type places struct {
	mu      sync.Mutex
	pending []*place
	// made are the names that came of places since the oldest pending one.
	made map[string]bool
}

type place struct {
	of    *places
	who   string
	n     int
	since time.Time
}

// reserve makes sure that n more sandboxes are allowed. The place is to be told
// what became of it.
func (s *Server) reserve(ctx context.Context, who *Token, n int) (*place, error) {
	p := &place{of: &s.sandboxes, n: n, since: time.Now()}
	mine := 0
	if who != nil {
		p.who, mine = who.ID, who.MaxSandboxes
	}
	if s.o.MaxSandboxes == 0 && mine == 0 {
		return p, nil
	}
	of := p.of
	of.mu.Lock()
	defer of.mu.Unlock()
	boxes, err := s.o.Engine.List(ctx, true)
	if err != nil {
		return nil, err
	}
	all := of.count(boxes, func(runtime.Sandbox) bool { return true }, func(*place) bool { return true })
	if m := s.o.MaxSandboxes; m > 0 && all+n > m {
		return nil, refusal(errQuota, fmt.Sprintf("there may be %d sandboxes, and there are %d", m, all), "remove some, or raise --max-sandboxes")
	}
	own := of.count(boxes, func(b runtime.Sandbox) bool { return b.Labels[tokenLabel] == p.who }, func(o *place) bool { return o.who == p.who })
	if mine > 0 && own+n > mine {
		return nil, refusal(errQuota, fmt.Sprintf("token %s may have %d sandboxes, and has %d", who.Name, mine, own), "remove some")
	}
	of.pending = append(of.pending, p)
	return p, nil
}

// count is how many sandboxes there are or are on their way. A box that is seen
// while its place is still pending is counted once.
func (ps *places) count(boxes []runtime.Sandbox, box func(runtime.Sandbox) bool, mine func(*place) bool) int {
	var there, coming, fresh int
	var oldest time.Time
	for _, p := range ps.pending {
		if mine(p) {
			coming += p.n
			if oldest.IsZero() {
				oldest = p.since
			}
		}
	}
	for _, b := range boxes {
		if !box(b) {
			continue
		}
		there++
		if coming > 0 && !b.Created.Before(oldest.Truncate(time.Second)) && !ps.made[b.Name] {
			fresh++
		}
	}
	return there + max(0, coming-fresh)
}

// taken ends a reservation: these came of it, or none.
func (p *place) taken(names ...string) {
	ps := p.of
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.pending = slices.DeleteFunc(ps.pending, func(o *place) bool { return o == p })
	if len(ps.pending) == 0 {
		ps.made = nil
		return
	}
	if ps.made == nil {
		ps.made = map[string]bool{}
	}
	for _, n := range names {
		if n != "" {
			ps.made[n] = true
		}
	}
}
