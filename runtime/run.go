package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/branches"
	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Defaults and bounds of a sandbox.
const (
	DefaultCPUs        = 1
	DefaultMemoryBytes = 512 << 20
	DefaultDiskBytes   = 4 << 30

	minMemoryBytes = 128 << 20
	minDiskBytes   = 32 << 20
	maxCPUs        = 64
	// maxBytes is of memory and of disk, each: what ext4 can hold in one file. No
	// sum of what one request may ask for overflows.
	maxBytes = 16 << 40
	// maxTTL is a hundred years: durations that a request's milliseconds overflow
	// are not far behind.
	maxTTL = 100 * 365 * 24 * time.Hour
)

// Run makes a sandbox from an image or a commit.
func (e *Local) Run(ctx context.Context, r RunRequest) (_ Sandbox, err error) {
	began := time.Now()
	if err := e.validateRun(&r); err != nil {
		return Sandbox{}, err
	}
	if err := e.makeRoom(ctx); err != nil {
		return Sandbox{}, err
	}
	b, err := e.imageStore()
	if err != nil {
		return Sandbox{}, err
	}
	image, ierr := b.Image(ctx, r.From)
	if ierr == nil && !r.FromDisk {
		return e.runImage(ctx, r, image, began)
	}
	if ierr != nil && !errors.Is(ierr, builder.ErrImageNotFound) && !errors.Is(ierr, builder.ErrInvalidName) && !errors.Is(ierr, builder.ErrAmbiguous) {
		return Sandbox{}, ierr
	}
	s, err := e.runCommit(ctx, r, began)
	if errors.Is(err, ErrNotFound) && ierr != nil && !r.FromDisk || errors.Is(err, branches.ErrInvalidRef) && ierr != nil {
		return Sandbox{}, notFound("sietch image ls lists images, sietch branch and sietch log commits; make one with sietch build or sietch image bootstrap debian:bookworm",
			"neither an image nor a commit is called %q", r.From)
	}
	return s, err
}

// validateRun checks the whole request and fills in the defaults.
func (e *Local) validateRun(r *RunRequest) error {
	var bad []string
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if r.Name != "" {
		if err := ValidateName("sandbox", r.Name); err != nil {
			say("%v", err)
		}
	}
	if r.From == "" {
		say("image or ref: none given")
	}
	if r.CPUs < 0 || r.CPUs > maxCPUs {
		say("cpus: %d is not between 1 and %d", r.CPUs, maxCPUs)
	}
	if r.MemoryBytes != 0 && r.MemoryBytes < minMemoryBytes {
		say("memory: %d bytes is less than %d MiB", r.MemoryBytes, minMemoryBytes>>20)
	}
	if r.MemoryBytes > maxBytes {
		say("memory: %d bytes is more than %d TiB", r.MemoryBytes, int64(maxBytes)>>40)
	}
	if r.DiskBytes != 0 && r.DiskBytes < minDiskBytes {
		say("disk: %d bytes is less than %d MiB", r.DiskBytes, minDiskBytes>>20)
	}
	if r.DiskBytes > maxBytes {
		say("disk: %d bytes is more than %d TiB", r.DiskBytes, int64(maxBytes)>>40)
	}
	switch r.Network {
	case "", NetworkNAT:
	case NetworkNone:
		if len(r.Ports) > 0 {
			say("ports: a sandbox without network has none to forward")
		}
	default:
		say("network: %q is neither nat nor none", r.Network)
	}
	for i, p := range r.Ports {
		if p.Host == 0 || p.Guest == 0 {
			say("ports: %d:%d: numbers are 1 to 65535", p.Host, p.Guest)
		}
		if p.Protocol == "" {
			r.Ports[i].Protocol = "tcp"
		} else if p.Protocol != "tcp" && p.Protocol != "udp" {
			say("ports: protocol %q is neither tcp nor udp", p.Protocol)
		}
		if p.HostIP == "" {
			r.Ports[i].HostIP = "0.0.0.0"
		}
	}
	for _, kv := range r.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
			say("env: %q is not KEY=VALUE", kv)
		}
	}
	if r.TTL < 0 || r.TTL > maxTTL {
		say("ttl: %s is not between 0 and a hundred years", r.TTL)
	}
	if err := validLabels(r.Labels); err != nil {
		say("%v", err)
	}
	if err := noNUL(r.Args, r.WorkingDir, r.User); err != nil {
		say("%v", err)
	}
	if len(bad) > 0 {
		return &Error{Kind: ErrUsage, Message: strings.Join(bad, "\n")}
	}
	const page = 1 << 20
	r.MemoryBytes = (r.MemoryBytes + page - 1) / page * page
	r.DiskBytes = (r.DiskBytes + page - 1) / page * page
	return nil
}

func (e *Local) runImage(ctx context.Context, q RunRequest, image builder.Image, began time.Time) (Sandbox, error) {
	guest, err := e.ensureGuest(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	r := &record{
		Name: q.Name,
		Machine: machine{
			Version:     machineVersion,
			CPUs:        orDefault(q.CPUs, DefaultCPUs),
			MemoryBytes: orDefault(q.MemoryBytes, DefaultMemoryBytes),
			DiskBytes:   orDefault(q.DiskBytes, DefaultDiskBytes),
			Image:       imageRef{ID: image.ID, Name: imageName(image, q.From), RootfsDigest: image.RootfsDigest},
			Kernel:      guest.KernelDigest,
			Initramfs:   guest.InitramfsDigest,
			Guest:       guestConfig(image.Config, q),
			Nested:      q.Nested,
		},
		Labels:  maps.Clone(q.Labels),
		Expires: expiry(q.TTL),

		askedUser: q.User,
	}
	r.Network = network{Mode: orDefault(q.Network, NetworkNAT), Ports: q.Ports}
	r.Machine.NetworkMode = r.Network.Mode

	if err := e.bootNew(ctx, r); err != nil {
		return Sandbox{}, err
	}
	return e.afterRun(ctx, q, r, began)
}

// bootNew makes a sandbox of a record and an empty layer.
func (e *Local) bootNew(ctx context.Context, r *record) (err error) {
	claims, err := e.claim(ctx, draft{rec: r})
	if err != nil {
		return err
	}
	back := claims[0].back
	defer back.OnError(ctx, &err)
	if err := builder.MakeLayer(ctx, e.layer(r.ID), r.Machine.DiskBytes); err != nil {
		return hostError(err)
	}
	if err := e.start(ctx, r, source{}); err != nil {
		return err
	}
	back.Add("end sandbox "+r.Name, func(ctx context.Context) error { return e.tearDown(ctx, r) })
	if err := e.withStore(ctx, func(s *branches.Store) error {
		return e.giveHeads(ctx, s, []*record{r}, newHead{unborn: true})
	}); err != nil {
		return err
	}
	return e.settle(claims[0])
}

// afterRun makes the first commit where one was asked for, and answers.
func (e *Local) afterRun(ctx context.Context, q RunRequest, r *record, began time.Time) (Sandbox, error) {
	ready := time.Since(began)
	e.emit(Event{Type: "sandbox.run", Sandbox: r.Name, Commit: commitText(r.Head.Commit), Image: r.Machine.Image.Name})
	if q.Message != "" {
		if _, err := e.Commit(ctx, CommitRequest{Name: r.Name, Message: q.Message}); err != nil {
			return Sandbox{}, fmt.Errorf("sandbox %s runs, but its first commit failed: %w", r.Name, err)
		}
	}
	s, err := e.Inspect(ctx, r.Name)
	s.Timing = &BootTiming{ReadyMS: milliseconds(ready)}
	return s, err
}

// ensureGuest fetches the kernel at first use.
func (e *Local) ensureGuest(ctx context.Context) (guestboot.Guest, error) {
	o, err := e.guestOptions()
	if err != nil {
		return guestboot.Guest{}, err
	}
	g, err := guestboot.Ensure(ctx, o)
	switch {
	case errors.Is(err, guestboot.ErrNoApt), errors.Is(err, guestboot.ErrMirror):
		return g, &Error{Kind: ErrHost, Message: "the guest kernel cannot be fetched", Err: err, Hint: "sietch doctor says what is missing"}
	case err != nil:
		return g, hostError(err)
	}
	return g, nil
}

// guestConfig joins what the image says with what the user asked for.
func guestConfig(c builder.Config, q RunRequest) proto.Config {
	cmd := c.Cmd
	if len(q.Args) > 0 {
		cmd = q.Args
	}
	g := proto.Config{
		Args:       slices.Concat(c.Entrypoint, cmd),
		Env:        slices.Concat(c.Env, q.Env),
		User:       orDefault(q.User, c.User),
		WorkingDir: orDefault(q.WorkingDir, c.WorkingDir),
		StopSignal: c.StopSignal,
	}
	g.Init = isInit(g.Args)
	return g
}

// isInit says whether a command wants to be PID 1 of a whole system.
func isInit(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch filepath.Base(args[0]) {
	case "init", "systemd", "openrc-init", "runit-init", "s6-svscan":
		return true
	}
	return false
}

// imageName is how people know the image: by what they asked for, when that
// was a name.
func imageName(i builder.Image, asked string) string {
	if slices.Contains(i.Names, asked) {
		return asked
	}
	if len(i.Names) > 0 && !strings.HasPrefix(i.ID, asked) && !strings.HasPrefix(i.ID, "sha256:"+asked) {
		for _, n := range i.Names {
			if strings.HasPrefix(n, asked+":") {
				return n
			}
		}
	}
	if len(i.Names) > 0 {
		return i.Names[0]
	}
	return i.ID
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
