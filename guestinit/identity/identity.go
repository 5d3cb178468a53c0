package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Options of New.
type Options struct {
	// Names is where the files of this machine's names are mounted from.
	Names *Names
	// Start starts a hook under the machine's only waiter, as agent.Options
	// describes it. Required where an image has hooks.
	Start func(cmd *exec.Cmd) (pid int, wait func() (unix.WaitStatus, error), err error)
	// Env is the sandbox's environment, given to hooks.
	Env []string
}

// Applier gives this copy of the machine its identity.
type Applier struct {
	o  Options
	mu sync.Mutex

	// What is done to the kernel; tests replace it.
	credit      func([]byte) error
	setHostname func(string) error
	now         func() time.Time
	uptime      func() time.Duration
	setTime     func(time.Time) error
	hooksDir    string
}

// New returns an Applier for the running kernel. It is held for the rest of the
// process's life.
func New(o Options) (*Applier, error) {
	// Held open: see mappedFile.
	random, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	a := &Applier{
		o:           o,
		credit:      func(seed []byte) error { return creditEntropy(random, seed) },
		setHostname: func(name string) error { return unix.Sethostname([]byte(name)) },
		now:         time.Now,
		uptime:      uptime,
		setTime:     setTime,
		hooksDir:    "/etc/sietch/fork.d",
	}
	// Where it does not exist, the kernel remembers that from now on.
	_, _ = os.Lstat(a.hooksDir)
	return a, nil
}

// minEntropy is what a fork must bring: the size of the kernel's key.
const minEntropy = 32

// Apply makes this copy the machine id describes. An error means that it must
// not be handed out: it would share secrets with its siblings. Empty fields are
// left as they are.
func (a *Applier) Apply(ctx context.Context, id proto.Identity) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id.Fork && len(id.Entropy) < minEntropy {
		return fmt.Errorf("reseed: %d bytes of entropy, %d are needed", len(id.Entropy), minEntropy)
	}
	if len(id.Entropy) > 0 {
		if err := a.credit(id.Entropy); err != nil {
			return fmt.Errorf("reseed: %w", err)
		}
	}
	if err := a.stepClock(id); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	if id.Hostname != "" {
		if err := a.setHostname(id.Hostname); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
	}
	if a.o.Names != nil {
		if err := a.o.Names.write(id); err != nil {
			return err
		}
	}
	if !id.Fork {
		return nil
	}
	return a.runHooks(ctx, id)
}

// clockSlack is how far the clock may be off before it is stepped. A step is
// seen by programs, a few milliseconds are not.
const clockSlack = 20 * time.Millisecond

// stepClock sets the wall clock. The monotonic clock goes on from the instant of
// the commit, so timers do too.
func (a *Applier) stepClock(id proto.Identity) error {
	if id.Time.IsZero() {
		return nil
	}
	if id.Fork {
		if a.now().Sub(id.Time).Abs() <= clockSlack {
			return nil
		}
		return a.setTime(id.Time)
	}
	// The time was noted some time before the machine was started; a clock that
	// is ahead of it was set from the hardware and knows better.
	earliest := id.Time.Add(a.uptime())
	if a.now().After(earliest.Add(-time.Second)) {
		return nil
	}
	return a.setTime(earliest)
}

func uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func setTime(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// creditEntropy mixes seed into the kernel's pool, counts it as entropy and
// makes the generator take a new key from the pool at once, so that no byte
// drawn from now on is one a sibling draws as well.
func creditEntropy(random *os.File, seed []byte) error {
	fd := int(random.Fd())
	if err := addEntropy(fd, seed); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.RNDRESEEDCRNG, 0); err != nil {
		return fmt.Errorf("take a new key: %w", err)
	}
	return nil
}

var errNoStart = errors.New("this machine cannot start hooks")
