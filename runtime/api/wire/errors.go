package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sietch-dev/sietch/runtime/api/client"
)

// Code is the kind of an error, as the API's document lists them. It is an error
// itself, for errors.Is:
//
//	if errors.Is(err, wire.NotFound) { … }
type Code string

func (c Code) Error() string { return strings.ReplaceAll(string(c), "_", " ") }

// The codes of the API.
const (
	Usage            Code = "usage"
	Unauthorized     Code = "unauthorized"
	Forbidden        Code = "forbidden"
	NotFound         Code = "not_found"
	MethodNotAllowed Code = "method_not_allowed"
	Busy             Code = "busy"        // held by somebody else, or moved meanwhile
	WrongState       Code = "wrong_state" // not in the state that this needs
	NotRunning       Code = "not_running"
	TooLarge         Code = "too_large"
	MediaType        Code = "media_type"
	WrongHost        Code = "wrong_host"
	KeyReused        Code = "key_reused"
	Interrupted      Code = "interrupted" // the server died under the call with this key
	UpgradeRequired  Code = "upgrade_required"
	RateLimited      Code = "rate_limited"
	Quota            Code = "quota" // as many sandboxes as are allowed are there
	Canceled         Code = "canceled"
	Failed           Code = "failed" // for a reason that is no kind of its own
	Corrupt          Code = "corrupt"
	Unreachable      Code = "unreachable" // the service in the sandbox does not answer
	Host             Code = "host"        // the server's host lacks something; see doctor
	ShuttingDown     Code = "shutting_down"
	Timeout          Code = "timeout"
)

// ErrProtocol is an answer that is none of this API.
var ErrProtocol = errors.New("not an answer of this API")

// Error is what the server said of a failure.
type Error struct {
	Code      Code
	Message   string // the thing and the reason
	Hint      string // the next step; may be empty
	Status    int    // of HTTP; 0 where a stream had begun
	RequestID string // what the server's log has it under
	ExitCode  int    // of a command that cannot be started: 126 or 127
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (hint: " + e.Hint + ")"
}

// Unwrap makes errors.Is(err, e.Code) true.
func (e *Error) Unwrap() error { return e.Code }

func errorOf(b *client.ErrorBody, status int, id string) error {
	return &Error{Code: Code(b.Code), Message: b.Message, Hint: b.Hint, Status: status, RequestID: id, ExitCode: b.ExitCode}
}

// longestError is how much of an answer is looked at for an error.
const longestError = 1 << 20

// refusal reads the error of an answer that is none of success, and closes it.
func refusal(resp *http.Response) error {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, longestError))
	if err != nil {
		return fmt.Errorf("read error of %s: %w", resp.Request.URL.Path, err)
	}
	var said client.Error
	if json.Unmarshal(data, &said) != nil || said.Error.Code == "" {
		return fmt.Errorf("%s %s: status %d: %w: %.200q", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, ErrProtocol, data)
	}
	return errorOf(&said.Error, resp.StatusCode, resp.Header.Get("X-Request-Id"))
}
