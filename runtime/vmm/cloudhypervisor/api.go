package cloudhypervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// api is the HTTP socket of one cloud-hypervisor (/api/v1 of its
// cloud-hypervisor.yaml). It serves one request after the other, whoever sends
// them. Each is a connection of its own: making one costs less than a
// connection left open does when the process of the other end is replaced.
type api struct{ socket string }

// apiError is an answer that is not success.
type apiError struct {
	endpoint string
	status   int
	reasons  []string // from the outermost to the cause
}

func (e *apiError) Error() string {
	reasons := e.reasons
	if len(reasons) > 1 && reasons[0] == "Error from API" {
		reasons = reasons[1:] // says what the endpoint says
	}
	if len(reasons) == 0 {
		return fmt.Sprintf("%s: HTTP status %d", e.endpoint, e.status)
	}
	return e.endpoint + ": " + strings.Join(reasons, ": ")
}

// answerBytes bounds an answer; the largest, vm.info, has some kilobytes.
const answerBytes = 4 << 20

// put sends a request; body may be nil. Files go along with it.
func (a api) put(ctx context.Context, endpoint string, body any, files ...*os.File) error {
	return a.call(ctx, http.MethodPut, endpoint, body, files, nil)
}

func (a api) call(ctx context.Context, method, endpoint string, body any, files []*os.File, result any) (err error) {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", a.socket)
	if err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%s: %w", endpoint, context.Cause(ctx))
		}
	}()

	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", endpoint, err)
		}
		payload = bytes.NewReader(data) // whose length net/http finds: chunks are not understood
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/api/v1/"+endpoint, payload)
	if err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// In one write: files belong to the first bytes they come with.
	var message bytes.Buffer
	if err := req.Write(&message); err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	if err := send(c.(*net.UnixConn), message.Bytes(), files); err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return fmt.Errorf("%s: read answer: %w", endpoint, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, answerBytes))
	if err != nil {
		return fmt.Errorf("%s: read answer: %w", endpoint, err)
	}
	if res.StatusCode/100 != 2 {
		e := &apiError{endpoint: endpoint, status: res.StatusCode}
		if json.Unmarshal(data, &e.reasons) != nil && len(data) > 0 {
			e.reasons = []string{string(bytes.TrimSpace(data))}
		}
		return e
	}
	if result != nil {
		if err := json.Unmarshal(data, result); err != nil {
			return fmt.Errorf("%s: read answer: %w", endpoint, err)
		}
	}
	return nil
}

func send(c *net.UnixConn, message []byte, files []*os.File) error {
	if len(files) > 0 {
		var numbers []int
		for _, f := range files {
			numbers = append(numbers, int(f.Fd()))
		}
		n, _, err := c.WriteMsgUnix(message, unix.UnixRights(numbers...), nil)
		if err != nil {
			return err
		}
		message = message[n:]
	}
	if len(message) == 0 {
		return nil
	}
	_, err := c.Write(message)
	return err
}

// Run states of vm.info.
const (
	stateRunning = "Running"
	statePaused  = "Paused"
)

// state asks for the machine's run state.
func (a api) state(ctx context.Context) (string, error) {
	var info struct {
		State string `json:"state"`
	}
	if err := a.call(ctx, http.MethodGet, "vm.info", nil, nil, &info); err != nil {
		return "", err
	}
	if info.State == "" {
		return "", errors.New("vm.info: answer tells no state")
	}
	return info.State, nil
}

// ramRefused reports whether err is the refusal to write RAM over a file that is
// there already, which leaves a complete device state behind.
func ramRefused(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.status == http.StatusInternalServerError &&
		slices.ContainsFunc(e.reasons, func(r string) bool { return strings.Contains(r, "/"+ramName+`"`) }) &&
		strings.HasSuffix(e.reasons[len(e.reasons)-1], fmt.Sprintf("(os error %d)", unix.EEXIST))
}
