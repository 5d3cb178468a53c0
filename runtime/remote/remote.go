package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

const (
	// socketName is where a server of a data directory listens.
	socketName = "serve.sock"
	base       = "http://localhost"
	// helloTime is how long a server may take to say its version. One that is
	// stopped accepts connections for ever.
	helloTime = 3 * time.Second
)

// Sentinels of [Open] and of calls.
var (
	// ErrNone: no server answers on the data directory. It costs next to nothing
	// to find out.
	ErrNone = errors.New("no server")
	// ErrOther: one does, but it is of another version, or does not speak.
	ErrOther = errors.New("server not usable")
	// ErrGone: the server ended before it answered.
	ErrGone = errors.New("server has gone")
)

// Options of [Open].
type Options struct {
	DataDir string
	Version string // of this program; the server has to have the same
}

// Engine is a server.
type Engine struct {
	dir   string
	http  *http.Client
	api   *client.Client
	calls wire.Server // for WebSockets
}

var _ runtime.Engine = (*Engine)(nil)

// Open finds the server of a data directory. [ErrNone] where there is none,
// [ErrOther] with a reason where it cannot be used.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if unix.Access(filepath.Join(o.DataDir, socketName), unix.W_OK) != nil {
		return nil, ErrNone
	}
	// The first connection decides, and is the first call's too.
	first, err := dial(ctx, o.DataDir)
	if err != nil {
		return nil, ErrNone
	}
	e := newEngine(o.DataDir, first)
	hello, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	v, err := wire.Answer[client.Version](e.api.Version(hello))
	switch {
	case err == nil && v.Version == o.Version:
		return e, nil
	case err == nil:
		err = fmt.Errorf("%w: it is sietch %s, this is %s", ErrOther, v.Version, o.Version)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case hello.Err() != nil:
		err = fmt.Errorf("%w: it does not answer", ErrOther)
	default: // it was ending, or is no server of this kind
		err = ErrNone
	}
	return nil, errors.Join(err, e.Close())
}

func newEngine(dir string, first net.Conn) *Engine {
	ready := make(chan net.Conn, 1)
	if first != nil {
		ready <- first
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case c := <-ready:
				return c, nil
			default:
				return dial(ctx, dir)
			}
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second,
		WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
	}
	header := http.Header{"Sietch-Caller": {"shell"}}
	e := &Engine{dir: dir, http: &http.Client{Transport: t}}
	e.calls = wire.Server{URL: base, HTTP: e.http, Header: header}
	e.api = &client.Client{Server: base + "/", Client: e.http, RequestEditors: []client.RequestEditorFn{
		func(_ context.Context, r *http.Request) error {
			wire.Tidy(r)
			maps.Copy(r.Header, header)
			return nil
		},
	}}
	return e
}

// dial connects to the socket by a name that is short, however long the
// directory's is.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var to net.Dialer
	return to.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName))
}

// Close lets go of the connections; whatever runs goes on.
func (e *Engine) Close() error {
	e.http.CloseIdleConnections()
	return nil
}

// gone is the error of a connection that broke.
func (e *Engine) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return &runtime.Error{Kind: ErrGone, Message: "the server of " + e.dir + " has ended", Hint: "the same command does without one"}
	}
	return &runtime.Error{Kind: ErrGone, Message: "the server of " + e.dir + " went away before it answered",
		Hint: "what it was doing is undone or finished by the next command: look with sietch ps -a, and try again"}
}
