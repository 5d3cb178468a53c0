// Package tools calls sietch's MCP tools as an agent does. It knows names and
// texts of the protocol, and nothing of sietch.
package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tools is a connection to a server.
type Tools struct {
	session *mcp.ClientSession
	// Say, when set, is told every call before it is made.
	Say func(line string)
}

// Start runs a command that serves on stdin and stdout, such as sietch mcp.
func Start(ctx context.Context, cmd *exec.Cmd) (*Tools, error) {
	return Connect(ctx, &mcp.CommandTransport{Command: cmd})
}

// Connect makes a connection.
func Connect(ctx context.Context, transport mcp.Transport) (*Tools, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "sietch-examples", Version: "1"}, nil)
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to MCP server: %w", err)
	}
	return &Tools{session: session}, nil
}

// Close ends it.
func (t *Tools) Close() error { return t.session.Close() }

// Args are a tool's arguments by name.
type Args map[string]any

// Call calls a tool and returns its text; a tool that fails is an error with it.
func (t *Tools) Call(ctx context.Context, tool string, args Args) (string, error) {
	r, err := t.call(ctx, tool, args)
	if err != nil {
		return "", err
	}
	return text(r), nil
}

// Into calls a tool and reads its structured result.
func (t *Tools) Into(ctx context.Context, tool string, args Args, v any) error {
	r, err := t.call(ctx, tool, args)
	if err != nil {
		return err
	}
	data, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("read result of %s: %w", tool, err)
	}
	return nil
}

// Picture calls a tool that answers with a picture.
func (t *Tools) Picture(ctx context.Context, tool string, args Args) ([]byte, error) {
	r, err := t.call(ctx, tool, args)
	if err != nil {
		return nil, err
	}
	for _, c := range r.Content {
		if m, ok := c.(*mcp.ImageContent); ok {
			return m.Data, nil
		}
	}
	return nil, fmt.Errorf("%s answers without a picture: %s", tool, text(r))
}

func (t *Tools) call(ctx context.Context, tool string, args Args) (*mcp.CallToolResult, error) {
	if t.Say != nil {
		t.Say(line(tool, args))
	}
	r, err := t.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", tool, err)
	}
	if r.IsError {
		return nil, fmt.Errorf("%s: %s", tool, text(r))
	}
	return r, nil
}

func text(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "\n")
}

// line is a call for people: long arguments in short.
func line(tool string, args Args) string {
	var words []string
	for _, name := range []string{"name", "image", "vm_name", "from", "n", "prefix", "snapshot_id", "ref", "message", "cmd", "path", "guest_port", "process_id"} {
		if v, ok := args[name]; ok {
			one := strings.Join(strings.Fields(fmt.Sprint(v)), " ")
			if len(one) > 60 {
				one = one[:57] + "..."
			}
			words = append(words, name+"="+one)
		}
	}
	return tool + " " + strings.Join(words, " ")
}
