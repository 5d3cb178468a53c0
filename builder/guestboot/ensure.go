package guestboot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// source is where a kernel comes from: the host's package mirror, or a test's.
type source interface {
	// fetch leaves in dir the files kernelPackage describes.
	fetch(ctx context.Context, dir string, log *slog.Logger) (kernelPackage, error)
}

// kernelPackage is an unpacked kernel as the distribution made it.
type kernelPackage struct {
	Version string            // of the kernel, as uname -r
	Image   string            // path of the boot image
	Builtin string            // path of modules.builtin
	Modules map[string]string // module name to path, compressed or not
	// Debs are the packages it came from: "NAME VERSION" to sha256.
	Debs map[string]string
}

func ensure(ctx context.Context, o Options, from source) (Guest, error) {
	if len(o.InitELF) == 0 {
		return Guest{}, errors.New("prepare guest kernel: no guest init was given")
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := store{o.Dir}
	key := initramfsKey(sha256.Sum256(o.InitELF))
	if g, err := s.current(key); err == nil {
		return g, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Guest{}, err
	}

	unlock, err := s.lock(ctx)
	if err != nil {
		return Guest{}, err
	}
	defer unlock()
	if g, err := s.current(key); err == nil { // another process did it meanwhile
		return g, nil
	}

	old, err := s.currentKernel()
	k := old
	if errors.Is(err, fs.ErrNotExist) {
		if k, err = s.addKernel(ctx, from, log); err == nil {
			err = s.setCurrent(currentRecord{Kernel: k.Digest})
		}
	}
	if err != nil && old.Digest != "" && ctx.Err() == nil {
		// Better than none, and what has booted until now.
		log.Warn("the guest kernel could not be fetched anew, the one that is there is used", "version", old.Version, "err", err)
		k, err = old, s.setCurrent(currentRecord{Kernel: old.Digest, Tried: kernelFormat})
	}
	if err != nil {
		return Guest{}, err
	}
	return s.addInitramfs(k, key, o.InitELF)
}

// lock waits for the exclusive lock of the directory.
func (s store) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create kernel directory: %w", err)
	}
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock kernel directory: %w", err)
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if err != unix.EINTR {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock kernel directory: %w", err)
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		// The waiter ends with the lock, and gives it back at once.
		go func() { <-got; f.Close() }()
		return nil, fmt.Errorf("wait for another sietch that fetches the guest kernel: %w", context.Cause(ctx))
	}
}
