package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/netplumb"
	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// phase says what a verb was about to do with a sandbox. A phase other than
// settled whose lock nobody holds was left by a crash.
type phase string

const (
	settled  phase = ""         // nothing under way
	creating phase = "creating" // undo: remove it
	removing phase = "removing" // redo: remove it
)

// want is the state that was last asked for.
type want string

const (
	wantRunning want = "running"
	wantPaused  want = "paused"
	wantStopped want = "stopped"
)

const recordVersion = 1

// record is sandbox.json: the facts about one sandbox. The truth about HEAD is
// in the store; the copy here is for verbs that must not wait for it.
type record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Phase   phase     `json:"phase,omitempty"`
	Want    want      `json:"want"`
	Fault   string    `json:"fault,omitempty"` // why it failed, once known

	Machine machine           `json:"machine"`
	Network network           `json:"network"`
	Labels  map[string]string `json:"labels,omitempty"`
	Head    recordHead        `json:"head"`
	// Expires is when it is to be removed. A fork or a run of a commit does not
	// inherit it: whoever makes a copy says how long that lives.
	Expires *time.Time `json:"expires,omitempty"`
	Memory  lineage    `json:"memory"`

	// askedUser is who the caller of run wants its processes to be: one that
	// the image does not know is the caller's mistake.
	askedUser string

	// Swap is a checkout under way.
	Swap *swap `json:"swap,omitempty"`

	// Handle is nil for a stopped sandbox.
	Handle *vmm.Handle   `json:"handle,omitempty"`
	VMM    *vmm.Identity `json:"vmm,omitempty"`
	// RunDir is set before the VMM is launched, so that a crash in between
	// still leaves a way to find the process.
	RunDir string `json:"run_dir,omitempty"`
	// ConsoleBytes is how long the console's log was when the machine was launched.
	ConsoleBytes int64 `json:"console_bytes,omitempty"`
}

// machine is what a commit records of a sandbox beside memory and disk: what is
// needed to build the same virtual hardware and to boot the same disk again.
// Stored with commits as JSON, versioned.
type machine struct {
	Version     int          `json:"version"`
	CPUs        int          `json:"cpus"`
	MemoryBytes int64        `json:"memory_bytes"`
	DiskBytes   int64        `json:"disk_bytes"`
	Image       imageRef     `json:"image"`
	Kernel      string       `json:"kernel"`    // sha256 of the bzImage
	Initramfs   string       `json:"initramfs"` // sha256 of the base initramfs
	Guest       proto.Config `json:"guest"`
	NetworkMode string       `json:"network_mode"`
	Nested      bool         `json:"nested,omitempty"` // virtualization shown to the guest
	// Limits set by resize. What a memory limit takes away, the guest's agent
	// holds, which is why it is the commits' too; a cold boot begins without.
	MemoryLimitBytes int64         `json:"memory_limit_bytes,omitempty"`
	CPULimit         float64       `json:"cpu_limit,omitempty"`
	VMM              *vmm.Identity `json:"vmm,omitempty"` // nil for disk commits
}

// memory is what the guest may use.
func (m *machine) memory() int64 { return orDefault(m.MemoryLimitBytes, m.MemoryBytes) }

func (m *machine) limits() jail.Limits {
	return jail.Limits{CPUs: m.CPUs, CPULimit: m.CPULimit, MemoryBytes: m.memory()}
}

type imageRef struct {
	ID           string `json:"id"`
	Name         string `json:"name"` // as asked for, for people
	RootfsDigest string `json:"rootfs_digest"`
}

type network struct {
	Mode  string     `json:"mode"`
	Addr  netip.Addr `json:"addr"`
	Ports []Port     `json:"ports,omitempty"`
}

type recordHead struct {
	Branch string        `json:"branch,omitempty"`
	Commit branches.Hash `json:"commit,omitzero"`
}

// lineage says what guest RAM was made from.
type lineage struct {
	// Base is the commit whose dump the VMM maps; zero after a cold boot, when
	// it maps a file of zeroes.
	Base branches.Hash `json:"base,omitzero"`
	// Generation counts launches: a tracker belongs to one VMM process.
	Generation int `json:"generation"`
}

func (r *record) netplumb() (netplumb.Network, error) {
	n := netplumb.Network{ID: r.ID, Mode: netplumb.Mode(r.Network.Mode), Addr: r.Network.Addr}
	var err error
	if n.TapOwner, err = jail.ID(n.Addr); err != nil {
		return n, err
	}
	for _, p := range r.Network.Ports {
		np := netplumb.Port{Host: p.Host, Guest: p.Guest, Protocol: p.Protocol}
		if p.HostIP != "" && p.HostIP != "0.0.0.0" {
			ip, err := netip.ParseAddr(p.HostIP)
			if err != nil {
				return n, fmt.Errorf("port %d: %w", p.Host, err)
			}
			np.HostIP = ip
		}
		n.Ports = append(n.Ports, np)
	}
	return n, nil
}

func (l layout) recordPath(id string) string { return filepath.Join(l.sandbox(id), "sandbox.json") }
func (l layout) layer(id string) string      { return filepath.Join(l.sandbox(id), "layer.ext4") }

func (l layout) save(r *record) error {
	r.Version = recordVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record of %s: %w", r.Name, err)
	}
	data = append(data, '\n')
	err = renameio.WriteFile(l.recordPath(r.ID), data, 0o600)
	if isFull(err) {
		err = l.saveInSpare(r.ID, data, err)
	}
	if err != nil {
		return fmt.Errorf("write record of %s: %w", r.Name, err)
	}
	l.keepSpare(r.ID)
	return nil
}

// A sandbox keeps a little space for its next record, so that it can be paused,
// stopped and above all removed on a disk that is full.
const spareBytes = 16 << 10

func (l layout) spare(id string) string { return filepath.Join(l.sandbox(id), "spare") }

// keepSpare sets the space aside. What cannot be had now may be later.
func (l layout) keepSpare(id string) {
	f, err := os.OpenFile(l.spare(id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if allocatedBytes(f.Name()) < spareBytes {
		// Best effort: without it, the record is as safe.
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, spareBytes)
	}
}

// saveInSpare writes a record into the space set aside and puts it in place, for
// when there was no other: full says so, and is returned where none was set
// aside. The record before becomes the spare of the next one: space that is given
// back on a full disk is not had again.
func (l layout) saveInSpare(id string, data []byte, full error) error {
	f, err := os.OpenFile(l.spare(id), os.O_WRONLY, 0o600)
	if err != nil {
		return full
	}
	defer f.Close()
	if _, err := f.WriteAt(data, 0); err != nil {
		return errors.Join(full, err)
	}
	if err := errors.Join(f.Truncate(int64(len(data))), f.Sync()); err != nil {
		return errors.Join(full, err)
	}
	return unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, l.recordPath(id), unix.RENAME_EXCHANGE)
}

func (l layout) load(id string) (*record, error) {
	data, err := os.ReadFile(l.recordPath(id))
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Message: "record of sandbox " + id + " cannot be read", Err: err,
			Hint: "its files are in " + l.sandbox(id)}
	}
	if r.Version > recordVersion {
		return nil, &Error{Kind: ErrHost, Message: fmt.Sprintf("sandbox %s was written by a newer sietch (record version %d)", r.Name, r.Version),
			Hint: "use that version"}
	}
	return r, nil
}

// records lists every sandbox, damaged ones included: those have a Fault and
// what could be told of them.
func (l layout) records() ([]*record, error) {
	entries, err := os.ReadDir(l.sandboxes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var list []*record
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		r, err := l.load(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // being made or removed at this moment, or left by a crash
		}
		if err != nil {
			r = &record{ID: e.Name(), Name: e.Name(), Fault: err.Error(), Want: wantRunning}
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *record) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list, nil
}

// find returns the sandbox of that name, or whose id it is.
func (l layout) find(name string) (*record, error) {
	if err := ValidateName("sandbox", name); err != nil {
		return nil, err
	}
	list, err := l.records()
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r.Name == name && r.Phase != removing {
			return r, nil
		}
	}
	for _, r := range list {
		if r.ID == name {
			return r, nil
		}
	}
	return nil, notFound("sietch ps -a lists the sandboxes there are", "sandbox %s does not exist", name)
}

// lockSandbox takes the lock of one sandbox for a verb that changes it and
// reads its record afresh beneath the lock.
func (e *Local) lockSandbox(ctx context.Context, name string) (*record, *fileLock, error) {
	for {
		r, err := e.find(name)
		if err != nil {
			return nil, nil, err
		}
		lock, err := waitLock(ctx, filepath.Join(e.sandbox(r.ID), "lock"), unix.LOCK_EX, e.opts.LockWait)
		switch {
		case errors.Is(err, errLocked):
			return nil, nil, busy("wait for the other command on it, or look with: sietch ps", "sandbox %s is being changed by another command", name)
		case errors.Is(err, fs.ErrNotExist):
			continue // removed meanwhile: find says so
		case err != nil:
			return nil, nil, fmt.Errorf("lock sandbox %s: %w", name, err)
		}
		fresh, err := e.load(r.ID)
		if err != nil {
			lock.unlock()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, nil, err
		}
		if err := e.mend(ctx, fresh); err != nil {
			lock.unlock()
			return nil, nil, err
		}
		return fresh, lock, nil
	}
}

// ValidateName refuses (ErrUsage) what cannot be the name of a sandbox, branch or
// tag, whichever kind says.
func ValidateName(kind, name string) error {
	if err := branches.ValidateName(name); err != nil {
		return usage("names are 1 to 63 of a-z 0-9 . _ - and begin with a letter or digit", "%s name %q is not allowed: %v", kind, name, err)
	}
	return nil
}
