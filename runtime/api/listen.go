package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
)

// SocketName is the unix socket in the data directory, where the user that owns
// it is let in without a token.
const SocketName = "serve.sock"

// grace is how long calls may go on when the server is to end. What they began
// is undone or finished by the engine, in this process or the next.
const grace = 15 * time.Second

// Listen says where a server is reached.
type Listen struct {
	Addresses []string // host:port; port 0 is a free one
	// DataDir is where the socket and the lock of the one server of a data
	// directory are; empty: neither.
	DataDir string
	// CertFile and KeyFile make the addresses speak TLS.
	CertFile, KeyFile string
	// Listening, when set, is called once all are open.
	Listening func(urls []string, socket string)
}

// Serve answers until ctx ends, and a while longer for calls under way.
func Serve(ctx context.Context, o Options, l Listen) (err error) {
	if o.Tokens == nil {
		for _, a := range l.Addresses {
			if NeedsTokens(a) {
				return &runtime.Error{Kind: runtime.ErrUsage, Message: fmt.Sprintf("anybody who reaches %s could use this host", a), Hint: "make a token with sietch token create, and give its file with --token-file"}
			}
		}
	} else if list, err := o.Tokens.List(); err != nil {
		return err
	} else if len(list) == 0 && len(l.Addresses) > 0 {
		return &runtime.Error{Kind: runtime.ErrUsage, Message: "the token file has no token, so nobody could come in", Hint: "make one with sietch token create"}
	}
	s, err := New(o)
	if err != nil {
		return err
	}
	h := &http.Server{}
	s.Configure(h)

	var open []net.Listener
	defer func() {
		for _, n := range open {
			n.Close()
		}
	}()
	var urls []string
	scheme := "http"
	if l.CertFile != "" {
		scheme = "https"
		certs, err := newCertificates(l.CertFile, l.KeyFile)
		if err != nil {
			return err
		}
		h.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.get}
	}
	for _, a := range l.Addresses {
		n, err := net.Listen("tcp", a)
		if err != nil {
			return listenError(a, err)
		}
		open = append(open, n)
		urls = append(urls, scheme+"://"+n.Addr().String())
	}
	tcp := len(open)
	socket := ""
	if l.DataDir != "" {
		n, unlock, err := listenSocket(l.DataDir)
		if err != nil {
			return err
		}
		defer unlock()
		open = append(open, n)
		socket = filepath.Join(l.DataDir, SocketName)
	}
	if len(open) == 0 {
		return &runtime.Error{Kind: runtime.ErrUsage, Message: "there is nothing to listen on"}
	}

	// Who connects meanwhile waits.
	s.Recover(ctx)

	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.Run(work) })
	failed := make(chan error, len(open))
	for i, n := range open {
		g.Go(func() error {
			var err error
			if i < tcp && l.CertFile != "" {
				err = h.ServeTLS(n, "", "")
			} else {
				err = h.Serve(n)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			failed <- err
			return err
		})
	}
	if l.Listening != nil {
		l.Listening(urls, socket)
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	s.Drain()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if h.Shutdown(end) != nil {
		h.Close()
	}
	stop()
	return g.Wait()
}

func listenError(address string, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return &runtime.Error{Kind: runtime.ErrBusy, Message: fmt.Sprintf("%s is in use", address), Err: err, Hint: "is a server running already? else choose another with --listen"}
	case errors.Is(err, unix.EACCES):
		return &runtime.Error{Kind: runtime.ErrHost, Message: "listen on " + address, Err: err, Hint: "ports below 1024 need root"}
	}
	var wrong *net.AddrError
	if errors.As(err, &wrong) {
		return usage(fmt.Sprintf("listen on %s: %v", address, err), "an address is HOST:PORT")
	}
	return &runtime.Error{Kind: runtime.ErrHost, Message: "listen on " + address, Err: err}
}

// listenSocket opens the unix socket of a data directory. The lock makes sure
// that a socket that is there belongs to nobody.
func listenSocket(dir string) (_ net.Listener, unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "serve.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open lock of the server: %w", err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, nil, &runtime.Error{Kind: runtime.ErrBusy, Message: "a server runs on " + dir + " already", Err: err, Hint: "one is enough: it may listen on several addresses"}
	}
	path := filepath.Join(dir, SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("remove old socket: %w", err)
	}
	// The name that the kernel is given is short, however long the directory's is.
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	n, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketName)})
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	n.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		n.Close()
		return nil, nil, fmt.Errorf("close socket to others: %w", err)
	}
	return n, func() { os.Remove(path); lock.Close() }, nil
}

// certificates is a certificate that is read again when its file changes.
type certificates struct {
	cert, key string
	mu        sync.Mutex
	at        time.Time
	loaded    *tls.Certificate
}

func newCertificates(cert, key string) (*certificates, error) {
	c := &certificates{cert: cert, key: key}
	if _, err := c.get(nil); err != nil {
		return nil, &runtime.Error{Kind: runtime.ErrUsage, Message: "read TLS certificate and key", Err: err}
	}
	return c, nil
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(c.cert)
	if err != nil && c.loaded == nil {
		return nil, err
	}
	if err == nil && (c.loaded == nil || !st.ModTime().Equal(c.at)) {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		switch {
		case err == nil:
			c.loaded, c.at = &pair, st.ModTime()
		case c.loaded == nil:
			return nil, err
		}
	}
	return c.loaded, nil
}
