package sietch

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Where a server is looked for when nobody says.
const (
	DefaultURL     = "http://127.0.0.1:7000"
	defaultDataDir = "/var/lib/sietch"
	socketName     = "serve.sock"
)

// Options of [New]; the zero value finds the server as the environment says.
type Options struct {
	// URL is http://HOST:PORT, https://… or unix:///PATH. Empty: SIETCH_URL, else
	// the server of this machine: by the socket in the data directory
	// (SIETCH_DATA_DIR) where there is one, else [DefaultURL].
	URL string
	// Token is what the server wants; empty: SIETCH_TOKEN, or none.
	Token string
	// TLS is for https; nil: the system's certificates.
	TLS *tls.Config
}

// Client is a server.
type Client struct {
	url   string
	token string
	http  *http.Client
	api   *client.Client
}

// New makes a client. It asks nothing of the server.
func New(o Options) (*Client, error) {
	base, socket, err := find(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Token == "" {
		o.Token = os.Getenv("SIETCH_TOKEN")
	}
	dialer := &net.Dialer{
		Timeout: 30 * time.Second,
		// A command may be silent for long; the kernel asks whether its server is
		// still there.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3},
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if socket != "" {
				network, addr = "unix", socket
			}
			return dialer.DialContext(ctx, network, addr)
		},
		TLSClientConfig: o.TLS, TLSHandshakeTimeout: 10 * time.Second,
		// Many commands may run at a time.
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second,
	}
	c := &Client{url: base, token: o.Token, http: &http.Client{Transport: t}}
	c.api, err = client.NewClient(base, client.WithHTTPClient(c.http), client.WithRequestEditorFn(c.edit))
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", base, err)
	}
	return c, nil
}

// find reads an address.
func find(address string) (base, socket string, err error) {
	if address == "" {
		address = os.Getenv("SIETCH_URL")
	}
	if address == "" {
		dir := os.Getenv("SIETCH_DATA_DIR")
		if dir == "" {
			dir = defaultDataDir
		}
		path := filepath.Join(dir, socketName)
		if unix.Access(path, unix.R_OK|unix.W_OK) == nil {
			return "http://localhost", path, nil
		}
		address = DefaultURL
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", "", &Error{Code: Usage, Message: fmt.Sprintf("%q is not the address of a server", address), Hint: "such as " + DefaultURL}
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return "http://localhost", u.Path, nil
	case (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "":
		return "", "", &Error{Code: Usage, Message: fmt.Sprintf("%q is not the address of a server", u.Redacted()), Hint: "such as " + DefaultURL + " or unix:///PATH"}
	}
	return strings.TrimSuffix(u.String(), "/"), "", nil
}

// API gives the generated client, for calls that have no method here. Answers
// that are errors are not told apart there.
func (c *Client) API() *client.Client { return c.api }

// Close lets go of idle connections; sandboxes stay.
func (c *Client) Close() { c.http.CloseIdleConnections() }

type keyOf struct{}

// WithIdempotencyKey makes a mutating call that is given the context happen once:
// when it is repeated with the key, the server gives the answer of the first.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOf{}, key)
}

// edit finishes each request: who asks, and without the parameters that the
// caller has not set, which generated code sends as empty.
func (c *Client) edit(ctx context.Context, r *http.Request) error {
	wire.Tidy(r)
	if key, ok := ctx.Value(keyOf{}).(string); ok && r.Method != http.MethodGet {
		r.Header.Set("Idempotency-Key", key)
	}
	c.authorize(r.Header)
	return nil
}

func (c *Client) authorize(h http.Header) {
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
}
