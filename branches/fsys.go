package branches

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// fsys is the file system as the pack files see it. Tests put one under a
// store that fails, cuts short or stops at a chosen write.
type fsys interface {
	open(name string) (file, error)   // existing, read and write
	create(name string) (file, error) // must not exist
	remove(name string) error
	syncDir(name string) error
}

// file is an open pack.
type file interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	Sync() error
	Stat() (fs.FileInfo, error)
	Close() error
}

type osFS struct{}

func (osFS) open(name string) (file, error) { return wrapFile(os.OpenFile(name, os.O_RDWR, 0)) }

func (osFS) create(name string) (file, error) {
	return wrapFile(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))
}

// wrapFile keeps a nil *os.File from becoming a non-nil file.
func wrapFile(f *os.File, err error) (file, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFS) remove(name string) error { return os.Remove(name) }

func (osFS) syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// faults lets a test stop the store before or after a step of the index, as
// fsys does for the packs. The nil value does nothing.
type faults struct {
	before, done func(step string) error
}

func (f *faults) at(step string) error {
	if f == nil || f.before == nil {
		return nil
	}
	return f.before(step)
}

func (f *faults) after(step string) error {
	if f == nil || f.done == nil {
		return nil
	}
	return f.done(step)
}

// makeDir creates a private directory and makes its name durable.
func makeDir(fsy fsys, dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	if err := fsy.syncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("sync %s: %w", filepath.Dir(dir), err)
	}
	return nil
}
