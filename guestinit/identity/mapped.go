package identity

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mappedFile is a small file in memory, held open and mapped. Why: a machine that
// was just restored on a host without KVM has to translate every kernel path it
// takes, and opening, writing and closing four files was more than half of what
// giving it an identity cost.
type mappedFile struct {
	f    *os.File
	page []byte
	size int
}

// mapFile opens a file that is no longer than a page.
func mapFile(path string) (*mappedFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && fi.Size() > int64(os.Getpagesize()) {
		err = unix.EFBIG
	}
	var page []byte
	if err == nil {
		page, err = unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &mappedFile{f, page, int(fi.Size())}, nil
}

// set replaces the content, in place: the file is mounted elsewhere.
func (m *mappedFile) set(text string) error {
	if len(text) > len(m.page) {
		return unix.EFBIG
	}
	if len(text) != m.size {
		if err := unix.Ftruncate(int(m.f.Fd()), int64(len(text))); err != nil {
			return err
		}
		m.size = len(text)
	}
	if len(text) > 0 {
		copy(m.page, text)
	}
	return nil
}
