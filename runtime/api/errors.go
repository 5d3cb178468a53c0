package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
)

// Codes of errors, as openapi.yaml lists them.
const (
	codeUsage            ErrorCode = "usage"
	codeUnauthorized     ErrorCode = "unauthorized"
	codeForbidden        ErrorCode = "forbidden"
	codeNotFound         ErrorCode = "not_found"
	codeMethodNotAllowed ErrorCode = "method_not_allowed"
	codeBusy             ErrorCode = "busy"
	codeWrongState       ErrorCode = "wrong_state"
	codeNotRunning       ErrorCode = "not_running"
	codeTooLarge         ErrorCode = "too_large"
	codeMediaType        ErrorCode = "media_type"
	codeWrongHost        ErrorCode = "wrong_host"
	codeKeyReused        ErrorCode = "key_reused"
	codeInterrupted      ErrorCode = "interrupted"
	codeUpgradeRequired  ErrorCode = "upgrade_required"
	codeRateLimited      ErrorCode = "rate_limited"
	codeQuota            ErrorCode = "quota"
	codeCanceled         ErrorCode = "canceled"
	codeFailed           ErrorCode = "failed"
	codeCorrupt          ErrorCode = "corrupt"
	codeUnreachable      ErrorCode = "unreachable"
	codeHost             ErrorCode = "host"
	codeShuttingDown     ErrorCode = "shutting_down"
	codeTimeout          ErrorCode = "timeout"
)

// statusCanceled says that the client had gone; nobody reads it but the log.
const statusCanceled = 499

// Sentinels of the server's own.
var (
	errUnauthorized    = errors.New("unauthorized")
	errForbidden       = errors.New("forbidden")
	errMethod          = errors.New("method not allowed")
	errTooLarge        = errors.New("too large")
	errMediaType       = errors.New("media type not supported")
	errWrongHost       = errors.New("wrong host")
	errKeyReused       = errors.New("idempotency key reused")
	errInterrupted     = errors.New("interrupted")
	errUpgradeRequired = errors.New("upgrade required")
	errRateLimited     = errors.New("rate limited")
	errQuota           = errors.New("quota used up")
	errUnreachable     = errors.New("service cannot be reached")
	errShuttingDown    = errors.New("server is shutting down")
)

// kinds is the one place where causes become statuses and codes; the first that
// fits wins. Damage comes first: it often shows as something missing.
var kinds = []struct {
	is     error
	status int
	code   ErrorCode
}{
	{runtime.ErrCorrupt, http.StatusInternalServerError, codeCorrupt},
	{runtime.ErrUsage, http.StatusBadRequest, codeUsage},
	{runtime.ErrNotFound, http.StatusNotFound, codeNotFound},
	{runtime.ErrBusy, http.StatusConflict, codeBusy},
	{runtime.ErrNotActive, http.StatusConflict, codeNotRunning},
	{runtime.ErrState, http.StatusConflict, codeWrongState},
	{runtime.ErrHost, http.StatusServiceUnavailable, codeHost},

	{errUnauthorized, http.StatusUnauthorized, codeUnauthorized},
	{errForbidden, http.StatusForbidden, codeForbidden},
	{errMethod, http.StatusMethodNotAllowed, codeMethodNotAllowed},
	{errTooLarge, http.StatusRequestEntityTooLarge, codeTooLarge},
	{errMediaType, http.StatusUnsupportedMediaType, codeMediaType},
	{errWrongHost, http.StatusMisdirectedRequest, codeWrongHost},
	{errKeyReused, http.StatusUnprocessableEntity, codeKeyReused},
	{errInterrupted, http.StatusConflict, codeInterrupted},
	{errUpgradeRequired, http.StatusUpgradeRequired, codeUpgradeRequired},
	{errRateLimited, http.StatusTooManyRequests, codeRateLimited},
	{errQuota, http.StatusTooManyRequests, codeQuota},
	{errUnreachable, http.StatusBadGateway, codeUnreachable},
	{errShuttingDown, http.StatusServiceUnavailable, codeShuttingDown},

	{context.DeadlineExceeded, http.StatusGatewayTimeout, codeTimeout},
	{context.Canceled, statusCanceled, codeCanceled},
}

// explain turns an error into what the wire says of it.
func explain(err error) (int, ErrorBody) {
	b := ErrorBody{Code: codeFailed, Message: err.Error(), Hint: runtime.Hint(err)}
	if cannot, ok := errors.AsType[*runtime.StartError](err); ok {
		b.ExitCode = cannot.Status.Code
	}
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		err = errTooLarge
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			b.Code = k.code
			return k.status, b
		}
	}
	return http.StatusInternalServerError, b
}

// refusal is an error of the server's own with its next step.
func refusal(kind error, message, hint string) error {
	return &runtime.Error{Kind: kind, Message: message, Hint: hint}
}

// usage is a request that makes no sense.
func usage(message, hint string) error { return refusal(runtime.ErrUsage, message, hint) }

// fail answers with an error, unless an answer has begun.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, body := explain(err)
	if c := callOf(r); c != nil {
		c.err = err
		if c.out.status != 0 {
			return
		}
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="sietch", Basic realm="sietch"`)
	}
	if status == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, Error{Error: body})
}

// failLine is the error as the last line of a stream that has begun.
func failLine(err error) Error {
	_, body := explain(err)
	return Error{Error: body}
}

// decode reads a JSON body. Fields that the document does not know are refused,
// unless lenient.
func decode[T any](r *http.Request, lenient bool) (T, error) {
	var v T
	if r.Body == nil || r.ContentLength == 0 {
		return v, nil
	}
	d := json.NewDecoder(r.Body)
	if !lenient {
		d.DisallowUnknownFields()
	}
	switch err := d.Decode(&v); {
	case errors.Is(err, io.EOF): // an optional body
		return v, nil
	case err != nil:
		return v, jsonError(err)
	}
	if d.More() {
		return v, usage("request body holds more than one JSON value", "")
	}
	return v, nil
}

// jsonError says what is wrong with a body without the words of the decoder's
// package.
func jsonError(err error) error {
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		return err
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	return &runtime.Error{Kind: runtime.ErrUsage, Message: "read request body: " + text, Hint: "the API is described at /v1/openapi.yaml"}
}
