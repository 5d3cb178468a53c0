package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
)

const (
	vmsURI   = "arrakis://vms"
	vmURI    = "arrakis://vm/"
	jsonMIME = "application/json"
)

// addResources offers what the REST routes of the same names answer.
func (t *tools) addResources(s *sdk.Server) {
	s.AddResource(&sdk.Resource{URI: vmsURI, Name: "vms", Title: "All sandboxes", Description: "All sandboxes, running or not, as JSON.", MIMEType: jsonMIME},
		func(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			boxes, err := t.engine(ctx).List(ctx, true)
			return asJSON(r.Params.URI, arrakis.ListOf(boxes), err)
		})
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: vmURI + "{vm_name}", Name: "vm", Title: "One sandbox", Description: "One sandbox, as JSON.", MIMEType: jsonMIME},
		func(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			b, err := t.engine(ctx).Inspect(ctx, strings.TrimPrefix(r.Params.URI, vmURI))
			return asJSON(r.Params.URI, arrakis.Of(b), err)
		})
}

func asJSON(uri string, v any, err error) (*sdk.ReadResourceResult, error) {
	switch {
	case errors.Is(err, runtime.ErrNotFound), errors.Is(err, runtime.ErrUsage):
		return nil, sdk.ResourceNotFoundError(uri)
	case err != nil:
		return nil, explained{err}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: jsonMIME, Text: string(data)}}}, nil
}
