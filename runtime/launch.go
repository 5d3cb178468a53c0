package runtime

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
	"github.com/sietch-dev/sietch/runtime/jail"
	"github.com/sietch-dev/sietch/runtime/undo"
	"github.com/sietch-dev/sietch/runtime/vmm"
)

// source is what a machine starts from: a cold boot of its disk, or the hot
// dump of a commit.
type source struct {
	commit branches.Hash // zero: cold boot
	dump   dump
	saved  vmm.Identity
}

// start brings the machine of a prepared sandbox up (its record says creating
// or stopped, its layer is there) and returns once the guest answers with an
// identity of its own. On error nothing of it runs any more.
func (e *Local) start(ctx context.Context, r *record, from source) (err error) {
	var back undo.Stack
	defer back.OnError(ctx, &err)

	image, guest, err := e.parts(ctx, r, from.commit.IsZero())
	if err != nil {
		return err
	}
	r.RunDir, err = e.runDir(r.ID)
	if err != nil {
		return err
	}
	runDir := r.RunDir
	back.Add("remove run directory", func(context.Context) error { return os.RemoveAll(runDir) })

	spec := vmm.Spec{
		ID:          r.ID,
		RunDir:      r.RunDir,
		CPUs:        r.Machine.CPUs,
		MemoryBytes: r.Machine.MemoryBytes,
		Nested:      r.Machine.Nested,
		Kernel:      guest.Kernel,
		Initramfs:   guest.Initramfs,
		Cmdline:     guest.Cmdline,
		Disks: []vmm.Disk{
			{ID: proto.ImageDisk, Path: image.RootfsPath, ReadOnly: true},
			{ID: proto.LayerDisk, Path: e.layer(r.ID)},
		},
		NIC:        &vmm.NIC{ID: "net0", Tap: tapName, MAC: proto.GuestMAC},
		ConsoleLog: filepath.Join(e.sandbox(r.ID), "console.log"),
		MainLog:    filepath.Join(e.sandbox(r.ID), "main.log"),
	}
	nw, err := r.netplumb()
	if err != nil {
		return err
	}
	uid := nw.TapOwner
	spec.Jail = &vmm.Jail{UID: uid, GID: uid}
	r.ConsoleBytes = 0
	if st, err := os.Stat(spec.ConsoleLog); err == nil {
		r.ConsoleBytes = st.Size()
	}
	identity := newIdentity(r.Name)
	r.Memory = lineage{Base: from.commit, Generation: r.Memory.Generation + 1}
	if from.commit.IsZero() {
		r.Machine.MemoryLimitBytes = 0
		if spec.MemoryFile, err = e.zeroFile(r.Machine.MemoryBytes); err != nil {
			return hostError(err)
		}
		if spec.Initramfs, err = bootConfig(r, guest, identity); err != nil {
			return hostError(err)
		}
		// It holds this sandbox's secrets only, and the run directory may be of a
		// kind that cannot show it to the VMM's user in any other way.
		if err := os.Chown(spec.Initramfs, uid, uid); err != nil {
			return hostError(err)
		}
	} else {
		spec.MemoryFile = from.dump.memory()
		spec.Restore = &vmm.Restore{Dir: from.dump.devices(), Saved: from.saved}
	}

	p, err := e.plumber()
	if err != nil {
		return err
	}
	// The record names network and run directory before either is used: what a
	// crash leaves is found by it.
	if err := e.save(r); err != nil {
		return hostError(err)
	}
	back.Add("remove control group", func(context.Context) error { return jail.RemoveGroup(e.cgroup(r.ID)) })
	group := e.confine(r)
	back.Add("remove network", func(ctx context.Context) error { return p.Down(ctx, r.ID) })
	if err := p.Up(ctx, nw); err != nil {
		return networkError(err)
	}
	spec.NetNS = p.NamespacePath(r.ID)
	if spec.Jail.Cgroups, err = group(); err != nil {
		return hostError(err)
	}

	driver, err := e.choose(ctx, from.saved.Driver)
	if err != nil {
		return err
	}
	m, err := driver.Launch(ctx, spec)
	if err != nil {
		return launchError(r.Name, err)
	}
	defer m.Close()
	back.Add("end the virtual machine", func(context.Context) error { return m.Kill() })
	h, id := m.Handle(), m.Identity()
	r.Handle, r.VMM, r.Want, r.Fault = &h, &id, wantRunning, ""
	if id.Accel == vmm.TCG {
		e.remarkEmulation()
	}

	c, err := e.dial(r.ID)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, e.opts.BootTimeout, errSilent)
	defer cancel()
	if !from.commit.IsZero() {
		if err := m.Resume(ctx); err != nil {
			return e.silentGuest(ctx, r, m, err)
		}
	}
	ctx, stop := whileItRuns(ctx, m)
	defer stop()
	if from.commit.IsZero() {
		_, err = c.WaitReady(ctx, 0)
		os.Remove(spec.Initramfs) // loaded; it holds the environment
		if err == nil && r.askedUser != "" {
			if err := knownUser(ctx, c, r.askedUser); err != nil {
				return err
			}
		}
	} else {
		identity.Fork = true
		err = identify(ctx, c, identity)
	}
	if err != nil {
		return e.silentGuest(ctx, r, m, err)
	}
	return nil
}

// confine makes the control group of a sandbox while other things are made; the
// function it returns waits for its directories. A host that allows no control
// groups gets a machine without limits.
func (e *Local) confine(r *record) (dirs func() ([]string, error)) {
	var g jail.Group
	var err error
	limits := r.Machine.limits()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g, err = jail.MakeGroup(e.cgroup(r.ID), limits)
	}()
	return func() ([]string, error) {
		<-done
		if errors.Is(err, jail.ErrDenied) {
			e.log.Warn("machine runs without limits", "sandbox", r.Name, "err", err)
			return nil, nil
		}
		return g.Dirs, err
	}
}

// Why the wait for a guest ends.
var (
	errSilent = errors.New("the guest did not answer in time")
	errStood  = fmt.Errorf("its VMM stopped it: %w", unix.ENOSPC)
)

// lookForStill is how often a machine that is awaited is asked whether it stands
// still: rarely enough to cost nothing.
const lookForStill = 2 * time.Second

// whileItRuns is a context that ends as soon as the machine does or stands still,
// so that nobody waits for a guest that cannot answer. Nobody but the VMM itself,
// which could not write, stops a machine that is starting.
func whileItRuns(ctx context.Context, m vmm.Machine) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(lookForStill)
		defer look.Stop()
		for {
			select {
			case <-m.Done():
				cancel(vmm.ErrGone)
			case <-look.C:
				if paused, err := m.Paused(ctx); err == nil && paused {
					cancel(errStood)
				}
				continue
			case <-ctx.Done():
			}
			return
		}
	}()
	return ctx, func() { cancel(context.Canceled); <-done }
}

// knownUser asks the guest for a user, by a command that cannot be run.
func knownUser(ctx context.Context, c *agent.Client, user string) error {
	_, err := c.Exec(ctx, proto.ExecRequest{Args: []string{"/"}, User: user, WorkingDir: "/"}, agent.IO{})
	if remote, ok := errors.AsType[*agent.RemoteError](err); ok && remote.Code == proto.CodeInvalid {
		return usage("a number needs no entry in the image", "%s", remote.Message)
	}
	return err
}

// identify hands a restored guest its own identity; the guest is not given out
// before it has answered.
func identify(ctx context.Context, c *agent.Client, id proto.Identity) error {
	id.Time = time.Now()
	return c.Identify(ctx, id)
}

func newIdentity(name string) proto.Identity {
	seed := make([]byte, 64)
	rand.Read(seed)
	return proto.Identity{Hostname: name, MachineID: newMachineID(), BootID: newUUID(), Time: time.Now(), Entropy: seed}
}

// findParts finds image and, for one that boots, kernel of a sandbox: those it was
// made with, also when newer ones are there by now. A restored machine has its
// kernel in memory.
func (e *Local) findParts(ctx context.Context, r *record, boots bool) (builder.Image, guestboot.Guest, error) {
	b, err := e.imageStore()
	if err != nil {
		return builder.Image{}, guestboot.Guest{}, err
	}
	image, err := b.Image(ctx, r.Machine.Image.ID)
	if err != nil {
		return image, guestboot.Guest{}, &Error{Kind: ErrNotFound, Message: fmt.Sprintf("image %s of sandbox %s is not here any more", r.Machine.Image.Name, r.Name),
			Err: err, Hint: "build or import it again: the same input gives the same image id"}
	}
	if !boots {
		return image, guestboot.Guest{}, nil
	}
	o, err := e.guestOptions()
	if err != nil {
		return image, guestboot.Guest{}, err
	}
	guest, err := guestboot.Find(ctx, o, guestboot.Digests{Kernel: r.Machine.Kernel, Initramfs: r.Machine.Initramfs})
	if err != nil {
		return image, guest, &Error{Kind: ErrNotFound, Message: "guest kernel of sandbox " + r.Name + " is not here any more", Err: err}
	}
	return image, guest, nil
}

// bootConfig writes the initramfs of one cold boot.
func bootConfig(r *record, guest guestboot.Guest, id proto.Identity) (string, error) {
	c := r.Machine.Guest
	c.Version, c.Hostname, c.Identity = proto.Version, r.Name, id
	c.Network = r.Network.Mode != NetworkNone
	data, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	path := filepath.Join(r.RunDir, "initramfs")
	return path, guestboot.WithConfig(guest.Initramfs, path, data)
}

func launchError(name string, err error) error {
	if errors.Is(err, vmm.ErrIncompatible) {
		return &Error{Kind: ErrHost, Message: "the memory of this commit cannot be restored here", Err: err,
			Hint: "boot its disk instead: sietch run --from-disk REF"}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return &Error{Kind: ErrHost, Message: "start virtual machine of " + name, Err: err, Hint: "apt-get install -y qemu-system-x86"}
	}
	return fmt.Errorf("start virtual machine of %s: %w", name, hostError(err))
}

// silentGuest says why a guest did not come up, with its last words.
func (e *Local) silentGuest(ctx context.Context, r *record, m vmm.Machine, err error) error {
	message := "sandbox " + r.Name + " did not answer"
	select {
	case <-m.Done():
		message = "the virtual machine of " + r.Name + " ended while it was starting"
		if m.Err() != nil {
			err = m.Err()
		} else {
			err = nil
		}
	default:
		if cause := context.Cause(ctx); errors.Is(cause, errStood) {
			return fmt.Errorf("start %s: %w", r.Name, hostError(cause))
		} else if errors.Is(cause, errSilent) {
			message += fmt.Sprintf(" within %s", e.opts.BootTimeout)
			err = nil
		} else if cause != nil {
			return cause // interrupted
		}
	}
	hint := "the console was empty"
	if last := e.lastConsole(r.ID, 12); last != "" {
		hint = "its last words on the console:\n" + last
	}
	return &Error{Kind: ErrState, Message: message, Err: err, Hint: hint}
}

// lastConsole returns the last lines of the console, indented. Of a kernel that
// panicked those are the ones that say so, not the registers it went on about.
func (e *Local) lastConsole(id string, lines int) string {
	data, err := tailOf(filepath.Join(e.sandbox(id), "console.log"), 8<<10)
	if err != nil {
		return ""
	}
	all := strings.Split(string(bytes.ToValidUTF8(bytes.TrimSpace(data), nil)), "\n")
	if len(all) == 1 && all[0] == "" {
		return ""
	}
	from := max(0, len(all)-lines)
	for i, l := range all {
		if strings.Contains(l, "Kernel panic") {
			from = min(from, max(0, i-2))
			break
		}
	}
	all = all[from:min(len(all), from+lines)]
	for i, l := range all {
		all[i] = "  | " + printable(l)
	}
	return strings.Join(all, "\n")
}

// printable drops what could drive the terminal of who reads it: a guest is not
// to be trusted with that.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '\t' || c >= ' ' && c != 0x7f && (c < 0x80 || c > 0x9f) {
			return c
		}
		return -1
	}, s)
}

// networkError gives errors of the network their kind.
func networkError(err error) error {
	if isPortError(err) {
		return &Error{Kind: ErrBusy, Message: "a host port cannot be forwarded", Err: err, Hint: "choose another with -p"}
	}
	return fmt.Errorf("set up network: %w", hostError(err))
}
