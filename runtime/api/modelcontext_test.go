package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
)

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestModelContext wants /mcp behind the same checks as everything else: a token
// comes in with its own, and sees its own sandboxes alone.
func TestModelContext(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "blue", Labels: map[string]string{"team": "blue"}}, Token{Name: "all"})
	l := newLab(t, func(o *Options) { o.Tokens = k })
	l.add("mine", runtime.Running, map[string]string{"team": "blue"})
	l.add("red", runtime.Running, map[string]string{"team": "red"})
	if a, err := http.Post(l.h.URL+"/mcp", "application/json", strings.NewReader("{}")); err != nil || a.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %v, %v", a, err)
	} else {
		a.Body.Close()
	}
	call := func(secret, tool string, args map[string]any) (string, bool) {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, nil)
		s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
			Endpoint: l.h.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(secret)}, DisableStandaloneSSE: true,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r.Content[0].(*mcp.TextContent).Text, r.IsError
	}
	if text, failed := call(secrets[0], "list_sandboxes", nil); failed || !strings.Contains(text, "mine is running") || strings.Contains(text, "red") {
		t.Errorf("a limited token sees %q", text)
	}
	if text, _ := call(secrets[1], "list_sandboxes", nil); !strings.Contains(text, "mine is running") || !strings.Contains(text, "red is running") {
		t.Errorf("a token for all sees %q", text)
	}
	if text, failed := call(secrets[0], "destroy_vm", map[string]any{"vm_name": "red"}); !failed || !strings.Contains(text, "does not exist") {
		t.Errorf("a limited token destroys another's: %q", text)
	}
	if text, failed := call(secrets[0], "destroy_vm", map[string]any{"vm_name": "mine"}); failed {
		t.Errorf("a limited token destroys its own: %q", text)
	}
	if a := l.do(t, "GET", "/metrics", "", "Authorization", "Bearer "+secrets[1]); !strings.Contains(a.body, `route="/mcp"`) {
		t.Error("/mcp is not counted by its route")
	}
}
