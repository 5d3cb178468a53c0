package mcp

import (
	"context"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// Handler serves the streamable HTTP transport. engine is the engine as the
// caller of a request may use it: who that is, and whether a web page may ask, is
// checked before.
func Handler(engine func(*http.Request) runtime.Engine, o Options) http.Handler {
	limit := o.MaxRequestBytes
	if limit == 0 {
		limit = maxRequest
	}
	// One server for all: what is a caller's own comes with the request.
	s := newServer(func(ctx context.Context) runtime.Engine { return callerOf(ctx).engine }, o)
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			return endWith(callerOf(ctx).gone)(next)(ctx, method, r)
		}
	})
	streamable := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{
		Stateless:                    true,
		PropagateRequestCancellation: true,
		DisableLocalhostProtection:   true, // the host name is checked before
		MaxRequestBodyBytes:          limit,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &caller{engine(r), r.Context()}
		streamable.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// caller is who made a request. The SDK keeps its values in the contexts of what
// comes of the request, though not its end.
type caller struct {
	engine runtime.Engine
	gone   context.Context // ends with the request
}

type callerKey struct{}

func callerOf(ctx context.Context) *caller { return ctx.Value(callerKey{}).(*caller) }

// endWith ends calls when the client has gone: what they do can be told to
// nobody any more. Clients of older versions of the protocol have no other way to
// say so without a session.
func endWith(gone context.Context) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stop := context.AfterFunc(gone, cancel)
			defer stop()
			return next(ctx, method, r)
		}
	}
}
