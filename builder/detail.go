package builder

import (
	"errors"
	"fmt"

	"github.com/containerd/typeurl/v2"
	"github.com/moby/buildkit/util/grpcerrors"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
)

// kind says over the wire which sentinel an error of the engine process stands
// for.
type kind string

const (
	kindUnreachable kind = "unreachable"
	kindNotFound    kind = "not-found"
	kindMissingTool kind = "missing-tool"
	kindNoSpace     kind = "no-space"
)

var kindSentinel = map[kind]error{
	kindUnreachable: ErrUnreachable,
	kindNotFound:    ErrImageNotFound,
	kindMissingTool: ErrMissingTool,
	kindNoSpace:     unix.ENOSPC,
}

func init() {
	typeurl.Register((*detail)(nil), "github.com/sietch-dev/sietch", "builder.detail+json")
}

// detail is what BuildKit's gRPC layer carries beside the text of an error, as
// JSON. It has to look like a protocol buffer to it.
type detail struct {
	*emptypb.Empty `json:"-"`
	Kind           kind   `json:"kind"`
	Hint           string `json:"hint,omitempty"`
	// Text is the whole message, without what the layers between add.
	Text string `json:"text"`
}

var _ grpcerrors.TypedErrorProto = (*detail)(nil)

// WrapError implements grpcerrors.TypedErrorProto on the receiving side.
func (d *detail) WrapError(err error) error { return &detailError{detail: d, cause: err} }

// detailError is an error with a detail, on either side of the wire.
type detailError struct {
	detail *detail
	cause  error
}

func newDetailError(k kind, hint string, cause error, format string, args ...any) error {
	return &detailError{&detail{Kind: k, Hint: hint, Text: fmt.Sprintf(format, args...)}, cause}
}

var _ grpcerrors.TypedError = (*detailError)(nil)

func (e *detailError) Error() string { return e.detail.Text }

// ToProto implements grpcerrors.TypedError on the sending side.
func (e *detailError) ToProto() grpcerrors.TypedErrorProto { return e.detail }

func (e *detailError) Unwrap() []error {
	out := make([]error, 0, 2)
	if s := kindSentinel[e.detail.Kind]; s != nil {
		out = append(out, s)
	}
	if e.cause != nil {
		out = append(out, e.cause)
	}
	return out
}

// Hint is the next step for the user.
func (e *detailError) Hint() string { return e.detail.Hint }

// detailOf finds the detail in the chain of an error.
func detailOf(err error) (*detailError, bool) {
	var d *detailError
	ok := errors.As(err, &d)
	return d, ok
}
