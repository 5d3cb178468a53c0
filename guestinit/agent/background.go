package agent

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Bounds of what is kept of processes in the background. Their output lies in
// the agent's memory, so that it is part of every snapshot and costs the guest
// no disk.
const (
	maxRunning = 512 // more are refused
	maxEnded   = 64  // the oldest are forgotten

	// outputLimit is what is kept of one process's output; the oldest bytes go
	// first. All of them together have a sixteenth of the machine's memory,
	// minBudget to maxBudget. When that is full, output of ended ones goes,
	// oldest first, and then nobody's grows any more.
	outputLimit = 1 << 20
	minBudget   = 2 << 20
	maxBudget   = 16 << 20

	maxArgsShown = 1 << 10 // bytes
)

// background is one process in the background. The table's lock guards what
// changes.
type background struct {
	p       *process // nil until it runs: nobody is to see it before
	id      string
	args    []string
	started time.Time

	out     ring
	ended   *time.Time
	removed bool
	wake    chan struct{} // when somebody waits: closed at the next change
}

// table holds the processes in the background, oldest first.
type table struct {
	budget int

	mu   sync.Mutex
	list []*background
	used int // bytes of all rings
}

// newTable makes a table for this machine.
func newTable() *table {
	t := &table{budget: minBudget}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		t.budget = int(min(max(uint64(si.Totalram)*uint64(si.Unit)/16, minBudget), maxBudget))
	}
	return t
}

// add makes room for a process that is about to be started.
func (t *table) add(args []string) (*background, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := 0
	for _, b := range t.list {
		if b.ended == nil {
			running++
		}
	}
	if running >= maxRunning {
		return nil, coded(proto.CodeInvalid, "%d processes run in the background, and more are not allowed", running)
	}
	b := &background{id: t.freshID(), args: shortened(args), started: time.Now()}
	t.list = append(t.list, b)
	return b, nil
}

// freshID makes an id that neither a process of this machine has nor, most
// likely, one of its copies or of its past: after going back, an old id should
// mean nothing rather than something else.
func (t *table) freshID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails
		for i := range b {
			b[i] = alphabet[b[i]%32]
		}
		if id := string(b[:]); t.find(id) == nil {
			return id
		}
	}
}

func (t *table) find(id string) *background {
	i := slices.IndexFunc(t.list, func(b *background) bool { return b.id == id })
	if i < 0 {
		return nil
	}
	return t.list[i]
}

// get returns the process of that id.
func (t *table) get(id string) (*background, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.find(id)
	if b == nil || b.p == nil {
		return nil, coded(proto.CodeNotFound, "no process %q in the background", id)
	}
	return b, nil
}

// forget takes a process out, also one that never ran.
func (t *table) forget(b *background) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(b)
}

func (t *table) drop(b *background) {
	b.removed = true
	t.used -= b.out.drop()
	t.list = slices.DeleteFunc(t.list, func(o *background) bool { return o == b })
	b.changed()
}

// write appends to what a process has written.
func (t *table) write(b *background, p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.removed {
		return
	}
	b.out.write(p, outputLimit, func(more int, must bool) bool {
		for _, o := range t.list {
			if t.used+more <= t.budget {
				break
			}
			if o != b && o.ended != nil {
				t.used -= o.out.drop()
			}
		}
		if t.used+more > t.budget && !must {
			return false
		}
		t.used += more
		return true
	})
	b.changed()
}

// finish notes the end of a process.
func (t *table) finish(b *background) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	b.ended = &now
	b.changed()
	var ended []*background
	for _, o := range t.list {
		if o.ended != nil {
			ended = append(ended, o)
		}
	}
	for i := 0; i < len(ended)-maxEnded; i++ {
		t.drop(ended[i])
	}
}

// remove forgets an ended process.
func (t *table) remove(id string) error {
	b, err := t.get(id)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.ended == nil {
		return coded(proto.CodeInvalid, "process %s is running", id)
	}
	t.drop(b)
	return nil
}

// changed wakes those who wait. The lock is held.
func (b *background) changed() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// next is closed at the next change. The lock is held.
func (b *background) next() <-chan struct{} {
	if b.wake == nil {
		b.wake = make(chan struct{})
	}
	return b.wake
}

// all describes every process.
func (t *table) all() []proto.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []proto.Process
	for _, b := range t.list {
		if b.p != nil {
			list = append(list, b.describe())
		}
	}
	return list
}

// describe is called with the lock held.
func (b *background) describe() proto.Process {
	d := proto.Process{
		ID: b.id, Args: b.args, PID: b.p.pid, Started: b.started.UTC(), Running: b.ended == nil,
		OutputBytes: b.out.total, OutputFrom: b.out.from(),
	}
	if b.ended != nil {
		at, exit := b.ended.UTC(), b.p.result
		if b.p.err != nil {
			exit = proto.ExitStatus{Code: exitLost, Error: "exit status was lost: " + b.p.err.Error()}
		}
		d.Ended, d.Exit = &at, &exit
	}
	return d
}

// shortened is a command as far as it is worth to be remembered.
func shortened(args []string) []string {
	left := maxArgsShown
	var short []string
	for _, a := range args {
		if len(a) > left {
			cut := a[:left]
			for cut != "" && !utf8.RuneStart(a[len(cut)]) {
				cut = cut[:len(cut)-1]
			}
			return append(short, strings.Clone(cut)+"…")
		}
		left -= len(a) + 1
		short = append(short, a)
		if left <= 0 && len(short) < len(args) {
			return append(short, "…")
		}
	}
	return short
}
