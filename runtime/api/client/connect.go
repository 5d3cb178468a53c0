package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Options of [Connect]; the zero value is the server that `sietch serve` starts.
type Options struct {
	// URL of the server; empty: http://127.0.0.1:7000. unix:///DATA/serve.sock is
	// the socket of a data directory.
	URL string
	// Token of `sietch token create`; empty: none.
	Token string
	// HTTP is what sends requests; nil: a client of its own. Not for unix URLs.
	HTTP *http.Client
}

// Connect returns a client. Nothing is dialled before the first call.
func Connect(o Options) (*Client, error) {
	if o.URL == "" {
		o.URL = "http://127.0.0.1:7000"
	}
	h := o.HTTP
	if h == nil {
		h = &http.Client{}
	}
	if socket, ok := strings.CutPrefix(o.URL, "unix://"); ok {
		var d net.Dialer
		h = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		}}}
		o.URL = "http://localhost"
	}
	if _, err := url.Parse(o.URL); err != nil {
		return nil, fmt.Errorf("parse URL of the server: %w", err)
	}
	return NewClient(o.URL, WithHTTPClient(h), WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		if o.Token != "" {
			r.Header.Set("Authorization", "Bearer "+o.Token)
		}
		return nil
	}))
}

// RemoteError is an error that the server told.
type RemoteError struct {
	Status int // of HTTP; 0 for one at the end of a stream
	ErrorBody
}

// Error is the server's message and hint.
func (e *RemoteError) Error() string {
	if e.Hint != "" {
		return e.Message + " (hint: " + e.Hint + ")"
	}
	return e.Message
}

// Is reports whether an error is a [RemoteError] with a code.
func Is(err error, code ErrorCode) bool {
	f, ok := errors.AsType[*RemoteError](err)
	return ok && f.Code == code
}

// JSON is the answer of a generated method:
//
//	box, err := client.JSON[client.Sandbox](c.InspectSandbox(ctx, "box"))
//
// For an answer without content T is any type.
func JSON[T any](a *http.Response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	defer a.Body.Close()
	if err := failure(a); err != nil {
		return v, err
	}
	if a.StatusCode == http.StatusNoContent {
		return v, nil
	}
	if err := json.NewDecoder(a.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("read answer of the server: %w", err)
	}
	return v, nil
}

// Body is the answer of a generated method that is not JSON, for the caller to
// close.
func Body(a *http.Response, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	if err := failure(a); err != nil {
		a.Body.Close()
		return nil, err
	}
	return a.Body, nil
}

func failure(a *http.Response) error {
	if a.StatusCode < 400 {
		return nil
	}
	var e Error
	data, err := io.ReadAll(io.LimitReader(a.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err != nil || e.Error.Code == "" {
		return &RemoteError{a.StatusCode, ErrorBody{Code: "failed", Message: "the server answered " + a.Status}}
	}
	return &RemoteError{a.StatusCode, e.Error}
}

// Lines reads an answer of a JSON object a line, until each fails. An error that
// the server tells as the last line is returned.
func Lines[T any](a *http.Response, err error, each func(T) error) error {
	body, err := Body(a, err)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e Error
			if json.Unmarshal(line, &e) == nil && e.Error.Code != "" {
				return &RemoteError{0, e.Error}
			}
			var v T
			if err := json.Unmarshal(line, &v); err != nil {
				return fmt.Errorf("read line of the server: %w", err)
			}
			if err := each(v); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read answer of the server: %w", err)
		}
	}
}

// ForkEach makes copies and calls each as they come up.
func (c *Client) ForkEach(ctx context.Context, r ForkRequest, each func(Fork) error) error {
	a, err := c.Fork(ctx, nil, r)
	return Lines(a, err, each)
}
