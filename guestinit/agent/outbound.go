package agent

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outbound writes to a connection and remembers its first error. The kernel
// reports a reset once, to whoever asks first: the read that comes after a
// failed write sees nothing but the end of the stream, as after a client that
// closed the connection.
type outbound struct {
	nc  net.Conn
	mu  sync.Mutex
	err error
}

func (o *outbound) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.nc.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// reset reports whether writing has found the connection reset. It is for the
// time after reading has ended, and lets a write under way have its say.
func (o *outbound) reset() bool {
	o.nc.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // a client that closed may still not read
	o.mu.Lock()
	defer o.mu.Unlock()
	return isReset(o.err)
}

// isReset reports whether the peer of a connection does not know it, or does not
// exist. After an end in order a writer gets EPIPE, which is not among these.
func isReset(err error) bool {
	for _, e := range []error{unix.ECONNRESET, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
