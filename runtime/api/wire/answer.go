package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Tidy takes out of a request the parameters that its maker has not set, which
// generated code sends as empty.
func Tidy(r *http.Request) {
	query := r.URL.Query()
	for name, values := range query {
		if len(values) == 1 && values[0] == "" {
			query.Del(name)
		}
	}
	r.URL.RawQuery = query.Encode()
	for name, values := range r.Header {
		if len(values) == 1 && values[0] == "" {
			r.Header.Del(name)
		}
	}
}

// Opened is the answer to a call, which is one of success so far; the caller
// closes its body.
func Opened(resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, refusal(resp)
	}
	return resp, nil
}

// Answer reads the JSON of an answer.
func Answer[T any](resp *http.Response, err error) (T, error) {
	var v T
	resp, err = Opened(resp, err)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("read answer to %s %s: %w", resp.Request.Method, resp.Request.URL.Path, err)
	}
	// So that the connection can be used again.
	_, err = io.Copy(io.Discard, resp.Body)
	return v, err
}

// Done is the end of a call without a result.
func Done(resp *http.Response, err error) error {
	resp, err = Opened(resp, err)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Body is the answer as a stream.
func Body(resp *http.Response, err error) (io.ReadCloser, error) {
	resp, err = Opened(resp, err)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// All is the answer's bytes.
func All(resp *http.Response, err error) ([]byte, error) {
	r, err := Body(resp, err)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Milliseconds rounds up: 0 means something else to the API.
func Milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
