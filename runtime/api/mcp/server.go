package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
)

// Options of [New] and [Handler]; the zero value works.
type Options struct {
	Version string
	Logger  *slog.Logger // nil: none
	// DefaultImage is what start_sandbox boots when it names none; empty:
	// [arrakis.DefaultImage].
	DefaultImage string
	// MaxRequestBytes bounds a message of a client; 0: 16 MiB.
	MaxRequestBytes int64
}

const maxRequest = 16 << 20

// instructions are for the model, once a session.
const instructions = `Sandboxes are microVMs: isolated Linux machines in which any code may be run as root. ` +
	`Treat them as git treats a work tree. start_sandbox boots one, run_command works in it. ` +
	`snapshot (or commit) saves the whole running machine, with memory and processes; ` +
	`restore_snapshot (or checkout) brings it back to that instant, and fork makes live copies to try several ways at once. ` +
	`Save before anything risky. A call that fails says why, and mostly what to do next.`

// tools is what the tools share.
type tools struct {
	engine func(context.Context) runtime.Engine // as the caller may use it
	o      Options
}

// New makes a server of an engine's verbs.
func New(engine runtime.Engine, o Options) *sdk.Server {
	return newServer(func(context.Context) runtime.Engine { return engine }, o)
}

func newServer(engine func(context.Context) runtime.Engine, o Options) *sdk.Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.DefaultImage == "" {
		o.DefaultImage = arrakis.DefaultImage
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	s := sdk.NewServer(
		&sdk.Implementation{Name: "sietch", Title: "sietch: git for running machines", Version: o.Version},
		&sdk.ServerOptions{
			Instructions: instructions,
			Logger:       quieter(o.Logger),
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{}},
			// What a sandbox is changes without a word to the client.
			SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.TTLMs, c.CacheScope = 0, "private" },
		})
	t := &tools{engine, o}
	t.addMachines(s)
	t.addCommands(s)
	t.addFiles(s)
	t.addHistory(s)
	t.addScreenshot(s)
	t.addResources(s)
	s.AddReceivingMiddleware(t.survive)
	return s
}

// survive keeps a tool that falls over from taking the process with it.
func (t *tools) survive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (_ sdk.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				stack := make([]byte, 16<<10)
				stack = stack[:goruntime.Stack(stack, false)]
				t.o.Logger.Error("mcp handler fell over", "method", method, "panic", fmt.Sprint(p), "stack", string(stack))
				err = errors.New("the server made a mistake; its log has it")
			}
		}()
		return next(ctx, method, r)
	}
}

// Hints say what a tool may do, so that a client knows when to ask.
type hints struct {
	readOnly, destructive, idempotent, openWorld bool
}

// add registers a tool. What its handler returns as an error becomes a result
// that the model reads.
func add[In, Out any](s *sdk.Server, name, title, description string, h hints, handle func(context.Context, *sdk.CallToolRequest, In) (*sdk.CallToolResult, Out, error)) {
	tool := &sdk.Tool{Name: name, Title: title, Description: description, Annotations: &sdk.ToolAnnotations{
		Title: title, ReadOnlyHint: h.readOnly, IdempotentHint: h.idempotent || h.readOnly,
		DestructiveHint: &h.destructive, OpenWorldHint: &h.openWorld,
	}}
	sdk.AddTool(s, tool, func(ctx context.Context, r *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		result, out, err := handle(ctx, r, in)
		if err != nil {
			return nil, out, explained{err}
		}
		return result, out, nil
	})
}

// explained is an error with its next step in its text: a model sees nothing
// else.
type explained struct{ err error }

func (e explained) Error() string {
	text := e.err.Error()
	if hint := runtime.Hint(e.err); hint != "" {
		text += "\nhint: " + hint
	}
	return text
}

func (e explained) Unwrap() error { return e.err }

// text is a result of one or more texts.
func text(parts ...string) *sdk.CallToolResult {
	r := &sdk.CallToolResult{Content: []sdk.Content{}}
	for _, p := range parts {
		r.Content = append(r.Content, &sdk.TextContent{Text: p})
	}
	return r
}

func usage(message, hint string) error {
	return &runtime.Error{Kind: runtime.ErrUsage, Message: message, Hint: hint}
}

// quieter logs what the SDK says one level down: its sessions are our requests.
func quieter(l *slog.Logger) *slog.Logger { return slog.New(lowered{l.Handler()}) }

type lowered struct{ slog.Handler }

func (h lowered) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, level-4)
}

func (h lowered) Handle(ctx context.Context, r slog.Record) error {
	r.Level -= 4
	return h.Handler.Handle(ctx, r)
}

func (h lowered) WithAttrs(a []slog.Attr) slog.Handler { return lowered{h.Handler.WithAttrs(a)} }
func (h lowered) WithGroup(n string) slog.Handler      { return lowered{h.Handler.WithGroup(n)} }
