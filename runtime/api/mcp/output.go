package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// spoolLimit is what is kept of an output that is too long to be shown.
const spoolLimit = 64 << 20

// output takes what a command writes. As much as is shown is kept in memory,
// more in a file without a name; the command is never held up.
type output struct {
	shown int // bytes

	mu    sync.Mutex
	buf   bytes.Buffer
	total int64
	spool *os.File
	size  int64 // of spool
	tail  []byte
	err   error
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(p))
	if o.spool == nil && o.err == nil && o.total > int64(o.shown) {
		o.open()
	}
	if o.spool == nil {
		o.buf.Write(p[:max(0, min(len(p), o.shown-o.buf.Len()))])
	} else if n := min(int64(len(p)), spoolLimit-o.size); n > 0 && o.err == nil {
		wrote, err := o.spool.Write(p[:n])
		o.size, o.err = o.size+int64(wrote), err
	}
	o.remember(p)
	return len(p), nil
}

// open moves what there is to a file.
func (o *output) open() {
	f, err := os.CreateTemp("", "sietch-output-")
	if err != nil {
		o.err = err
		return
	}
	o.err = os.Remove(f.Name())
	n, err := f.Write(o.buf.Bytes())
	o.spool, o.size, o.err = f, int64(n), errors.Join(o.err, err)
}

// remember keeps the end of it all.
func (o *output) remember(p []byte) {
	if len(p) >= shownTail {
		o.tail = append(o.tail[:0], p[len(p)-shownTail:]...)
		return
	}
	if over := len(o.tail) + len(p) - shownTail; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	o.tail = append(o.tail, p...)
}

// ends are the beginning and the end, or, where nothing needs to be left out,
// all in head.
func (o *output) ends(headBytes, tailBytes int) (head, tail []byte, cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.buf.Bytes()
	if o.total <= int64(o.shown) {
		return all, nil, false
	}
	return all[:min(len(all), headBytes)], o.tail[max(0, len(o.tail)-tailBytes):], true
}

// whole reads what was kept of it, from the beginning.
func (o *output) whole() (io.Reader, int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, 0, fmt.Errorf("keep output: %w", o.err)
	}
	return io.NewSectionReader(o.spool, 0, o.size), o.size, nil
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spool != nil {
		o.spool.Close()
	}
}
