package agent

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

const (
	// drainGrace is how long output is still taken from the descendants of a
	// process that has ended. Docker waits until all of them have closed it,
	// which for a shell that has put a server into the background is forever.
	drainGrace = 200 * time.Millisecond
	// readSize is the default capacity of a pipe, so that one read empties it.
	readSize = 64 << 10
)

var buffers = sync.Pool{New: func() any {
	b := make([]byte, proto.FrameHeader+readSize)
	return &b
}}

// copy hands all output on, until nobody can write any more, which it reports,
// or the deadline that is set when the process has ended has passed and what it
// had written is delivered.
func (o *output) copy(emit func(proto.FrameType, []byte)) (ended bool) {
	if o.many {
		return o.copyIdle(emit)
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	buf := *b
	for {
		n, err := o.file.Read(buf[proto.FrameHeader:])
		if n > 0 {
			emit(o.kind, buf[:proto.FrameHeader+n])
		}
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.drain(buf, emit)
			return false
		}
		return true // end of file; EIO from a terminal that was hung up
	}
}

// copyIdle is copy without a buffer of its own while there is nothing to read.
func (o *output) copyIdle(emit func(proto.FrameType, []byte)) (ended bool) {
	rc, err := o.file.SyscallConn()
	if err != nil {
		return true
	}
	for {
		n := 0
		err := rc.Read(func(fd uintptr) bool {
			b := buffers.Get().(*[]byte)
			defer buffers.Put(b)
			var err error
			if n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), (*b)[proto.FrameHeader:]) }); err == unix.EAGAIN {
				return false
			}
			if n > 0 {
				emit(o.kind, (*b)[:proto.FrameHeader+n])
			}
			return true
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			b := buffers.Get().(*[]byte)
			defer buffers.Put(b)
			o.drain(*b, emit)
			return false
		case err != nil, n <= 0:
			return true
		}
	}
}

func ignoringEINTR(read func() (int, error)) (n int, err error) {
	for {
		if n, err = read(); err != unix.EINTR {
			return n, err
		}
	}
}

// drain delivers what is in the pipe now. All that the ended process wrote is
// within its first capacity bytes, however slowly the client has taken it; what
// others keep adding must not make this endless.
func (o *output) drain(buf []byte, emit func(proto.FrameType, []byte)) {
	rc, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	o.file.SetReadDeadline(time.Time{})
	left := readSize
	rc.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			left = n
		}
	})
	for left > 0 {
		p := buf[proto.FrameHeader:]
		p = p[:min(len(p), left)]
		n := 0
		err := rc.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), p)
			return true // never wait for more
		})
		if err != nil || n <= 0 {
			return
		}
		left -= n
		emit(o.kind, buf[:proto.FrameHeader+n])
	}
}

// discard reads until the last holder has closed the other end: a descendant
// in the background must not be ended by SIGPIPE because its parent has.
func (o *output) discard() {
	var small [4 << 10]byte
	for {
		if _, err := o.file.Read(small[:]); err != nil {
			return
		}
	}
}
