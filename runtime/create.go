package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/undo"
)

// draft is a sandbox to be: its record lacks name, id and address.
type draft struct {
	rec *record
	// prefix asks for the first free of PREFIX-1, PREFIX-2, … when the record
	// has no name; without one, a name is made up.
	prefix string
}

// claim is a sandbox that has its name, address and directory and nothing else
// yet. The claimer holds its lock; back gives everything up again.
type claim struct {
	rec  *record
	lock *fileLock
	back *undo.Stack
}

// claim reserves sandboxes, all or none. Names and addresses are unique because
// this is the only place that gives them out, one claimer at a time.
func (e *Local) claim(ctx context.Context, drafts ...draft) (claims []claim, err error) {
	global, err := e.lockSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	defer global.unlock()
	existing, err := e.records()
	if err != nil {
		return nil, err
	}
	taken := map[string]*record{}
	var addrs []netip.Addr
	for _, r := range existing {
		taken[r.Name] = r
		if r.Network.Addr.IsValid() {
			addrs = append(addrs, r.Network.Addr)
		}
	}
	var more int64
	for _, d := range drafts {
		more += d.rec.Machine.memory()
	}
	if err := e.admitAmong(existing, len(drafts), more); err != nil {
		return nil, err
	}
	p, err := e.plumber()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, c := range claims {
				err = errors.Join(err, c.back.Run(ctx))
			}
			claims = nil
		}
	}()
	for _, d := range drafts {
		r := d.rec
		if r.Name == "" {
			if r.Name, err = freeName(d.prefix, taken); err != nil {
				return claims, err
			}
		}
		if old, ok := taken[r.Name]; ok {
			if old.Phase == creating {
				return claims, busy("choose another --name", "a sandbox called %s is being made by another command", r.Name)
			}
			return claims, busy("choose another --name, or remove it: sietch rm -f "+r.Name, "a sandbox is called %s already", r.Name)
		}
		if err := portsFree(r, existing); err != nil {
			return claims, err
		}
		addr, err := p.FreeAddr(addrs)
		if err != nil {
			return claims, fmt.Errorf("find a network address: %w", err)
		}
		addrs = append(addrs, addr)
		r.ID, r.Created, r.Phase, r.Network.Addr = newID(), time.Now().UTC(), creating, addr
		taken[r.Name] = r
		existing = append(existing, r)

		dir := e.sandbox(r.ID)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return claims, hostError(err)
		}
		c := claim{rec: r, back: new(undo.Stack)}
		claims = append(claims, c)
		c.back.Add("remove directory of "+r.Name, func(context.Context) error { return os.RemoveAll(dir) })
		lock, err := tryLock(filepath.Join(dir, "lock"), unix.LOCK_EX)
		if err != nil {
			return claims, fmt.Errorf("lock new sandbox: %w", err)
		}
		c.back.Add("unlock "+r.Name, func(context.Context) error { lock.unlock(); return nil })
		claims[len(claims)-1].lock = lock
		if err := e.save(r); err != nil {
			return claims, hostError(err)
		}
	}
	return claims, nil
}

// lockSandboxes is held by whoever adds or sweeps sandboxes.
func (e *Local) lockSandboxes(ctx context.Context) (*fileLock, error) {
	l, err := waitLock(ctx, filepath.Join(e.sandboxes(), ".lock"), unix.LOCK_EX, e.opts.LockWait)
	if errors.Is(err, errLocked) {
		return nil, busy("try again", "another command is creating sandboxes")
	}
	return l, err
}

// settle makes a new sandbox a lasting one.
func (e *Local) settle(c claim) error {
	c.rec.Phase = settled
	if err := e.save(c.rec); err != nil {
		return hostError(err)
	}
	c.back.Release()
	c.lock.unlock()
	return nil
}

// portsFree checks against what other sandboxes have been promised, running or
// not; netplumb checks against the host.
func portsFree(r *record, others []*record) error {
	for _, p := range r.Network.Ports {
		for _, o := range others {
			if o == r {
				continue
			}
			for _, q := range o.Network.Ports {
				if p.Host == q.Host && p.Protocol == q.Protocol && (p.HostIP == q.HostIP || anyHost(p.HostIP) || anyHost(q.HostIP)) {
					return busy("choose another with -p", "host port %d belongs to sandbox %s", p.Host, o.Name)
				}
			}
		}
	}
	return nil
}

func anyHost(ip string) bool { return ip == "" || ip == "0.0.0.0" }

func isPortError(err error) bool {
	var pe *netplumb.PortError
	return errors.As(err, &pe)
}

var (
	nameFirst = []string{"amber", "arid", "bold", "brisk", "calm", "clear", "coral", "deep", "dry", "dusky", "fair", "fleet", "golden", "hidden", "keen", "lone", "lucid", "mild", "noble", "pale", "quiet", "rapid", "sandy", "sharp", "still", "sunny", "swift", "tawny", "vast", "warm"}
	nameLast  = []string{"acacia", "basin", "canyon", "cavern", "cistern", "crest", "dune", "falcon", "fennec", "gecko", "gorge", "grotto", "heron", "lynx", "mesa", "mirage", "moon", "oasis", "palm", "quartz", "ridge", "scarab", "sirocco", "spring", "steppe", "tamarisk", "terrace", "wadi", "well", "wind"}
)

// freeName counts up from a prefix, or makes up a name.
func freeName(prefix string, taken map[string]*record) (string, error) {
	if prefix != "" {
		for i := 1; ; i++ {
			name := fmt.Sprintf("%s-%d", prefix, i)
			if err := ValidateName("sandbox", name); err != nil {
				return "", err
			}
			if _, ok := taken[name]; !ok {
				return name, nil
			}
		}
	}
	for i := 0; ; i++ {
		name := nameFirst[rand.IntN(len(nameFirst))] + "-" + nameLast[rand.IntN(len(nameLast))]
		if i > 50 {
			name += "-" + newID()[:4]
		}
		if _, ok := taken[name]; !ok {
			return name, nil
		}
	}
}
