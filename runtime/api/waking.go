package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/sietch-dev/sietch/runtime"
)

// waking is an engine that knows when a sandbox was last used, parks those that
// are not (commit, then stop), and brings a parked one back when it is needed.
//
// What is parked is written down, so that another server finds it. That a parked
// sandbox was started or checked out by somebody else meanwhile is seen by its
// state; its marker is then void. Waking saves the disk that it finds, so that
// nothing is lost even where that cannot be seen.
type waking struct {
	runtime.Engine
	idle time.Duration
	file string // empty: in memory only
	log  *slog.Logger
	now  func() time.Time

	onPark, onWake func()

	mu     sync.Mutex
	seats  map[string]*seat
	parked map[string]parked // by sandbox name
}

// seat is the use of one sandbox: held shared by those who use it, and alone by
// who parks or wakes it.
type seat struct {
	sync.RWMutex
	mu   sync.Mutex
	last time.Time
}

// parked says what a sandbox is to be brought back to.
type parked struct {
	ID     string `json:"id"` // of the sandbox
	Commit string `json:"commit"`
	Branch string `json:"branch,omitempty"`
}

func newWaking(e runtime.Engine, idle time.Duration, dir string, log *slog.Logger) (*waking, error) {
	w := &waking{Engine: e, idle: idle, log: log, now: time.Now, seats: map[string]*seat{}, parked: map[string]parked{}, onPark: func() {}, onWake: func() {}}
	if dir == "" {
		return w, nil
	}
	w.file = filepath.Join(dir, "parked.json")
	data, err := os.ReadFile(w.file)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read parked sandboxes: %w", err)
	}
	if err := json.Unmarshal(data, &w.parked); err != nil {
		return nil, refusal(runtime.ErrCorrupt, fmt.Sprintf("read %s: %v", w.file, err), "remove it: parked sandboxes then boot cold on their disks")
	}
	return w, nil
}

func (w *waking) seat(name string) *seat {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seats[name]
	if s == nil {
		s = &seat{last: w.now()}
		w.seats[name] = s
	}
	return s
}

func (s *seat) touch(now time.Time) {
	s.mu.Lock()
	s.last = now
	s.mu.Unlock()
}

func (s *seat) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// use makes sure that a sandbox is not parked, and that it will not be before
// done is called.
func (w *waking) use(ctx context.Context, name string) (done func(), err error) {
	if w.idle == 0 && !w.isParked(name) {
		return func() {}, nil
	}
	s := w.seat(name)
	s.RLock()
	for w.isParked(name) {
		s.RUnlock()
		if err := w.wake(ctx, name, s); err != nil {
			return nil, err
		}
		s.RLock()
	}
	s.touch(w.now())
	return func() { s.touch(w.now()); s.RUnlock() }, nil
}

func (w *waking) isParked(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.parked[name]
	return ok
}

// mark writes down what is parked, or with nil that it is not.
func (w *waking) mark(name string, p *parked) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, had := w.parked[name]
	switch {
	case p != nil:
		w.parked[name] = *p
	case !had:
		return nil
	default:
		delete(w.parked, name)
	}
	if w.file == "" {
		return nil
	}
	data, err := json.Marshal(w.parked)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.file), 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(w.file, data, 0o600)
	}
	if err != nil {
		if delete(w.parked, name); had {
			w.parked[name] = old
		}
		return fmt.Errorf("write down parked sandboxes: %w", err)
	}
	return nil
}

// wake brings a parked sandbox back.
func (w *waking) wake(ctx context.Context, name string, s *seat) error {
	s.Lock()
	defer s.Unlock()
	w.mu.Lock()
	p, ok := w.parked[name]
	w.mu.Unlock()
	if !ok {
		return nil // by somebody else
	}
	b, err := w.Engine.Inspect(ctx, name)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return err
	}
	if err == nil && b.ID == p.ID && b.State == runtime.Stopped && b.Head.Commit == p.Commit {
		ref := p.Commit
		if p.Branch != "" {
			ref = "branch/" + p.Branch
		}
		// The caller may leave; others are waiting for it too.
		if _, err := w.Engine.Checkout(context.WithoutCancel(ctx), runtime.CheckoutRequest{Name: name, Ref: ref}); err != nil {
			return fmt.Errorf("wake sandbox %s: %w", name, err)
		}
		w.onWake()
		w.log.Info("woken", "sandbox", name)
	}
	s.touch(w.now())
	return w.mark(name, nil)
}

// forget drops the marker of a sandbox that is about to be something else.
func (w *waking) forget(name string) error { return w.mark(name, nil) }

// park puts aside what nobody has used for long enough. It returns how many.
func (w *waking) park(ctx context.Context) (n int) {
	boxes, err := w.Engine.List(ctx, true)
	if err != nil {
		w.log.Warn("look for idle sandboxes", "err", err)
		return 0
	}
	there := map[string]bool{}
	for _, b := range boxes {
		there[b.Name] = true
		if b.State != runtime.Running {
			continue
		}
		s := w.seat(b.Name)
		if !s.TryLock() {
			continue // in use
		}
		if w.isParked(b.Name) {
			// Somebody else has started it.
			if err := w.forget(b.Name); err != nil {
				w.log.Warn("forget parked sandbox", "sandbox", b.Name, "err", err)
			}
			s.touch(w.now())
		} else if w.now().Sub(s.since()) >= w.idle {
			switch done, err := w.parkOne(ctx, b); {
			case err != nil:
				w.log.Warn("park idle sandbox", "sandbox", b.Name, "err", err)
				s.touch(w.now()) // not again at once
			case done:
				n++
			default:
				s.touch(w.now())
			}
		}
		s.Unlock()
	}
	w.mu.Lock()
	for name := range w.seats {
		if _, parked := w.parked[name]; !there[name] && !parked {
			delete(w.seats, name)
		}
	}
	w.mu.Unlock()
	return n
}

// parkOne commits and stops one sandbox, unless something in it still works.
func (w *waking) parkOne(ctx context.Context, b runtime.Sandbox) (bool, error) {
	processes, err := w.Engine.ListProcesses(ctx, b.Name)
	if err != nil {
		return false, err
	}
	for _, p := range processes {
		if p.Running {
			return false, nil
		}
	}
	// Paused, so that the commit is the last thing that it did.
	if err := w.Engine.Pause(ctx, b.Name); err != nil {
		return false, err
	}
	back := func(err error) (bool, error) {
		return false, errors.Join(err, w.Engine.Resume(context.WithoutCancel(ctx), b.Name))
	}
	c, err := w.Engine.Commit(ctx, runtime.CommitRequest{Name: b.Name, Message: "parked after " + w.idle.String() + " without use"})
	if err != nil {
		return back(err)
	}
	if err := w.mark(b.Name, &parked{ID: b.ID, Commit: c.ID, Branch: b.Head.Branch}); err != nil {
		return back(err)
	}
	// The state is safe; there is nobody to be polite to.
	if err := w.Engine.Stop(ctx, runtime.StopRequest{Name: b.Name, Timeout: time.Millisecond}); err != nil {
		w.forget(b.Name)
		return back(err)
	}
	w.onPark()
	w.log.Info("parked", "sandbox", b.Name, "commit", c.ID)
	return true, nil
}

// --- verbs that need the sandbox running

func (w *waking) Exec(ctx context.Context, r runtime.ExecRequest, stdio runtime.ExecIO) (runtime.ExitStatus, error) {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return runtime.ExitStatus{}, err
	}
	defer done()
	return w.Engine.Exec(ctx, r, stdio)
}

func (w *waking) CopyIn(ctx context.Context, r runtime.CopyInRequest, tar io.Reader) error {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.CopyIn(ctx, r, tar)
}

func (w *waking) CopyOut(ctx context.Context, r runtime.CopyOutRequest, tar io.Writer) error {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.CopyOut(ctx, r, tar)
}

func (w *waking) StatPath(ctx context.Context, name, path string) (runtime.PathStat, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return runtime.PathStat{}, err
	}
	defer done()
	return w.Engine.StatPath(ctx, name, path)
}

func (w *waking) ListDir(ctx context.Context, name, path string) ([]runtime.PathStat, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return w.Engine.ListDir(ctx, name, path)
}

func (w *waking) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.MakeDir(ctx, name, path, mode, parents)
}

func (w *waking) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.RemovePath(ctx, name, path, recursive)
}

func (w *waking) WatchPath(ctx context.Context, r runtime.WatchRequest, each func(runtime.FileEvent) error) error {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.WatchPath(ctx, r, each)
}

func (w *waking) StartProcess(ctx context.Context, r runtime.ExecRequest) (runtime.Process, error) {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return runtime.Process{}, err
	}
	defer done()
	return w.Engine.StartProcess(ctx, r)
}

func (w *waking) ListProcesses(ctx context.Context, name string) ([]runtime.Process, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return w.Engine.ListProcesses(ctx, name)
}

func (w *waking) InspectProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return runtime.Process{}, err
	}
	defer done()
	return w.Engine.InspectProcess(ctx, name, id)
}

func (w *waking) WaitProcess(ctx context.Context, name, id string) (runtime.Process, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return runtime.Process{}, err
	}
	defer done()
	return w.Engine.WaitProcess(ctx, name, id)
}

func (w *waking) ProcessOutput(ctx context.Context, r runtime.ProcessOutputRequest, to io.Writer) (int64, error) {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return 0, err
	}
	defer done()
	return w.Engine.ProcessOutput(ctx, r, to)
}

func (w *waking) SignalProcess(ctx context.Context, name, id string, sig syscall.Signal) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.SignalProcess(ctx, name, id, sig)
}

func (w *waking) RemoveProcess(ctx context.Context, name, id string) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.RemoveProcess(ctx, name, id)
}

func (w *waking) AddPort(ctx context.Context, name string, p runtime.Port) (runtime.Port, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return runtime.Port{}, err
	}
	defer done()
	return w.Engine.AddPort(ctx, name, p)
}

func (w *waking) RemovePort(ctx context.Context, name string, p runtime.Port) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.RemovePort(ctx, name, p)
}

// DialPort keeps the sandbox in use for as long as the connection stands.
func (w *waking) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := w.Engine.DialPort(ctx, name, port)
	if err != nil {
		done()
		return nil, err
	}
	return &usedConn{ReadWriteCloser: c, done: sync.OnceFunc(done)}, nil
}

type usedConn struct {
	io.ReadWriteCloser
	done func()
}

func (c *usedConn) CloseWrite() error {
	if t, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return nil
}

func (c *usedConn) Close() error {
	defer c.done()
	return c.ReadWriteCloser.Close()
}

func (w *waking) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return runtime.Commit{}, err
	}
	defer done()
	return w.Engine.Commit(ctx, r)
}

func (w *waking) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	done, err := w.use(ctx, r.From) // no sandbox: no harm
	if err != nil {
		return nil, err
	}
	defer done()
	return w.Engine.Fork(ctx, r, each)
}

func (w *waking) Resize(ctx context.Context, r runtime.ResizeRequest) (runtime.Sandbox, error) {
	done, err := w.use(ctx, r.Name)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	defer done()
	return w.Engine.Resize(ctx, r)
}

func (w *waking) Pause(ctx context.Context, name string) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.Pause(ctx, name)
}

func (w *waking) Resume(ctx context.Context, name string) error {
	done, err := w.use(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return w.Engine.Resume(ctx, name)
}

func (w *waking) Start(ctx context.Context, name string) (runtime.Sandbox, error) {
	done, err := w.use(ctx, name)
	if err != nil {
		return runtime.Sandbox{}, err
	}
	defer done()
	return w.Engine.Start(ctx, name)
}

// --- verbs after which it is something else than what was parked

func (w *waking) Stop(ctx context.Context, r runtime.StopRequest) error {
	if err := w.Engine.Stop(ctx, r); err != nil {
		return err
	}
	return w.forget(r.Name)
}

func (w *waking) Checkout(ctx context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	b, err := w.Engine.Checkout(ctx, r)
	if err != nil {
		return b, err
	}
	w.seat(r.Name).touch(w.now())
	return b, w.forget(r.Name)
}

func (w *waking) Remove(ctx context.Context, name string, force bool) error {
	if err := w.Engine.Remove(ctx, name, force); err != nil {
		return err
	}
	return w.forget(name)
}

// Run does what is due without a request, until ctx ends: it parks idle
// sandboxes, and lets the engine remove those whose time is over.
func (s *Server) Run(ctx context.Context) error {
	every := 15 * time.Second
	if s.o.IdlePause > 0 {
		every = max(time.Second, min(every, s.o.IdlePause/4))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.o.IdlePause > 0 {
			s.engine.park(ctx)
		}
		if e, ok := s.o.Engine.(expirer); ok {
			gone, err := e.Expire(ctx)
			for _, name := range gone {
				s.log.Info("time to live is over", "sandbox", name)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Warn("remove sandboxes whose time is over", "err", err)
			}
		}
	}
}

// recoverWait is how long a server puts right what was left before it answers
// all the same.
const recoverWait = time.Minute

// Recover puts right what an earlier server, or a command, left when it was
// killed, so that nobody meets what is half-made. What cannot be done is for the
// log: every verb does as much for what it needs.
func (s *Server) Recover(ctx context.Context) {
	e, ok := s.o.Engine.(recoverer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recoverWait)
	defer cancel()
	n, err := e.Recover(ctx)
	if n > 0 {
		s.log.Info("removed what killed commands left", "count", n)
	}
	if err != nil {
		s.log.Warn("remove what killed commands left", "err", err)
	}
}

// recoverer is an engine that can be told to put right what killed commands,
// an earlier server among them, left.
type recoverer interface {
	Recover(ctx context.Context) (removed int, err error)
}

// expirer is an engine that can be told to remove what has expired.
type expirer interface {
	Expire(ctx context.Context) (removed []string, err error)
}
