package agent

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// stdin carries what the host sends to a process that reads when it likes. It
// holds at most a window of it: the host is told how much was taken.
type stdin struct {
	file  *os.File // write end of a pipe, or the terminal
	tty   bool
	grant func(n int) // tells the host that n more bytes may come

	mu     sync.Mutex
	wake   sync.Cond
	queue  []byte // came in, not yet being written
	held   int    // queue and what is being written
	eof    bool   // nothing more will come
	closed bool   // nothing more will be read
}

func newStdin(f *os.File, tty bool, grant func(int)) *stdin {
	in := &stdin{file: f, tty: tty, grant: grant}
	in.wake.L = &in.mu
	return in
}

// put queues bytes and never blocks.
func (in *stdin) put(p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held+len(p) > proto.StdinWindow {
		return fmt.Errorf("%w: more stdin than was granted", proto.ErrFrame)
	}
	if in.eof || in.closed {
		return nil
	}
	in.held += len(p)
	in.queue = append(in.queue, p...)
	in.wake.Signal()
	return nil
}

// end makes the process see the end of its input once it has read the rest.
func (in *stdin) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.eof = true
	in.wake.Signal()
}

// close drops what is left and ends pump, also when it is blocked.
func (in *stdin) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.closed = true
	in.queue = nil
	in.wake.Signal()
	if in.tty {
		in.file.SetWriteDeadline(time.Unix(1, 0)) // the output side closes it
	} else {
		in.file.Close()
	}
}

// take waits for bytes to write. It returns none at the end of input.
func (in *stdin) take(spare []byte) (p []byte, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.queue) == 0 && !in.eof && !in.closed {
		in.wake.Wait()
	}
	p, in.queue = in.queue, spare[:0]
	return p, !in.closed
}

func (in *stdin) taken(n int) {
	in.mu.Lock()
	in.held -= n
	in.mu.Unlock()
}

// pump writes to the process until its input ends or close is called.
func (in *stdin) pump() {
	var spare []byte
	granted, broken := 0, false
	for {
		p, ok := in.take(spare)
		if !ok {
			return
		}
		if len(p) == 0 {
			break
		}
		if !broken {
			// A process that has closed its stdin does not care for the rest;
			// the host may still send it, like a shell's pipe would let it.
			_, err := in.file.Write(p)
			broken = err != nil
		}
		in.taken(len(p))
		if granted += len(p); granted >= proto.StdinWindow/4 {
			in.grant(granted)
			granted = 0
		}
		if spare = p; cap(spare) > proto.MaxPayload {
			spare = nil // a burst does not keep its memory
		}
	}
	if in.tty {
		in.endTerminal()
		return
	}
	in.close()
}

// endTerminal types the end-of-file character, where the terminal has one.
func (in *stdin) endTerminal() {
	rc, err := in.file.SyscallConn()
	if err != nil {
		return
	}
	eof := byte(0)
	rc.Control(func(fd uintptr) {
		if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil && t.Lflag&unix.ICANON != 0 {
			eof = t.Cc[unix.VEOF]
		}
	})
	if eof != 0 {
		in.file.Write([]byte{eof})
	}
}
