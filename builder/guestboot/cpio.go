package guestboot

import (
	"fmt"
	"io"
)

// archive writes the "newc" cpio format the kernel unpacks (format
// documentation: driver-api/early-userspace/buffer-format of the kernel). It is
// written here because the cpio module of this project's tests cannot store
// device numbers. Everything in it belongs to root and has no times, so equal
// content gives equal bytes. The first error is kept and ends it.
type archive struct {
	w     io.Writer
	n     int64
	inode uint32
	err   error
}

// Types of an archive member.
const (
	modeDir  = 0o040000
	modeChar = 0o020000
	modeFile = 0o100000
)

func (a *archive) dir(name string, perm uint32) {
	a.member(name, modeDir|perm, 2, 0, 0, nil)
}

func (a *archive) file(name string, perm uint32, body []byte) {
	a.member(name, modeFile|perm, 1, 0, 0, body)
}

func (a *archive) charDevice(name string, perm, major, minor uint32) {
	a.member(name, modeChar|perm, 1, major, minor, nil)
}

// close writes the end mark; it does not close the writer.
func (a *archive) close() error {
	a.inode = 0
	a.member("TRAILER!!!", 0, 1, 0, 0, nil)
	return a.err
}

func (a *archive) member(name string, mode, links, major, minor uint32, body []byte) {
	if name != "TRAILER!!!" {
		a.inode++
	}
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor,
	// rdevmajor, rdevminor, namesize, check
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, links, 0, len(body), 0, 0, major, minor, len(name)+1, 0)
	a.write([]byte(header))
	a.write(append([]byte(name), 0))
	a.pad()
	a.write(body)
	a.pad()
}

func (a *archive) pad() { a.write(make([]byte, -a.n&3)) }

func (a *archive) write(b []byte) {
	if a.err != nil || len(b) == 0 {
		return
	}
	n, err := a.w.Write(b)
	a.n, a.err = a.n+int64(n), err
}
